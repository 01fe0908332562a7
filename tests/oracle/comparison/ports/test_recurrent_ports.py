"""What a recurrent layer does otherwise than that of PyTorch is told, and nothing of a right port."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its recurrent layers were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402
from tests.support.sampled import sampled  # noqa: E402

WIDTH, STATES, STEPS, EXAMPLES = 5, 6, 8, 3
READ: Final = np.random.default_rng(4).normal(size=(EXAMPLES, STEPS, WIDTH)).astype(np.float32)
KINDS: Final = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}


class Network(nn.Module):
    def __init__(self, kind: str, *, directions: int, depth: int, ends: bool = False) -> None:
        super().__init__()
        self.ends = ends
        self.first = nn.Linear(WIDTH, WIDTH)
        self.rnn = KINDS[kind](WIDTH, STATES, depth, batch_first=True, bidirectional=directions == 2)
        self.last = nn.Linear(directions * STATES, 4)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.45)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in the batch
        states, ends = self.rnn(self.first(input))
        found: Tensor = self.last(torch.cat(list(ends), -1) if self.ends else states)
        return found


def _reference(kind: str, *, directions: int = 1, depth: int = 1, ends: bool = False) -> tuple[Dump, dict[str, Any]]:
    torch.manual_seed(1)
    module = Network(kind, directions=directions, depth=depth, ends=ends)
    dump = capture(module, lambda y: y.square().mean(), {"input": torch.from_numpy(READ)})
    return dump, {name.replace(".", "/"): each.detach().numpy().copy() for name, each in module.state_dict().items()}


def _cell(kind: str, fault: str, parts: Mapping[str, Any], read: Any, states: Any) -> Any:
    state, carried = states
    bias_ih, bias_hh = parts["bias_ih"], parts["bias_hh"] * (fault != "no bias of the states")
    sums = [
        jnp.split(x @ parts[weight].T + bias, len(bias) // STATES, -1)
        for x, weight, bias in ((read, "weight_ih", bias_ih), (state, "weight_hh", bias_hh))
    ]
    function = jax.nn.relu if fault == "relu" else jnp.tanh
    gate = jax.nn.hard_sigmoid if fault == "hard_sigmoid" else jax.nn.sigmoid
    if kind == "RNN":
        return (function(sums[0][0] + sums[1][0]),) * 2
    if fault == "order":
        sums = [[each[1], each[0], *each[2:]] for each in sums]
    if kind == "GRU":
        reset, update = (gate(sums[0][at] + sums[1][at]) for at in (0, 1))
        kernel, bias = parts["weight_hh"][-STATES:], bias_hh[-STATES:]
        product = reset * sums[1][2]
        if fault == "reset":
            product = (reset * state) @ kernel.T + bias
        if fault == "bias behind":
            product = reset * (state @ kernel.T) + bias
        new = function(sums[0][2] + product)
        old, fresh = (1 - update, update) if fault == "swapped" else (update, 1 - update)
        return (fresh * new + old * state,) * 2
    i, f, g, o = (one + other for one, other in zip(*sums, strict=True))
    carried = gate(f + (fault == "forget")) * carried + gate(i) * function(g)
    return (o if fault == "never" else gate(o)) * (carried if fault == "output" else jnp.tanh(carried)), carried


def _run(kind: str, fault: str, parts: Mapping[str, Any], read: Any, *, backwards: bool) -> Any:
    begin = jnp.full((EXAMPLES, STATES), 0.3 * (fault == "initial"))
    lengths = jnp.array([STEPS, STEPS - 2, STEPS - 1])

    def step(states: Any, at: Any) -> Any:
        made = _cell(kind, fault, parts, read[:, at], states)
        if fault == "mask":
            made = jax.tree.map(lambda new, old: jnp.where((at < lengths)[:, None], new, old), made, states)
        return made, made[1 if fault == "cell state" else 0]

    order = np.arange(STEPS)[:: -1 if backwards is not (fault == "turned") else 1]
    made = lax.scan(step, (begin, begin * (kind != "LSTM")), order)[1]
    return (made[::-1] if order[0] and fault != "reversed" else made).swapaxes(0, 1)


def _port(
    kind: str,
    fault: str,
    weights: dict[str, Any],
    *,
    directions: int = 1,
    depth: int = 1,
    wrong: Any = (),
    scope: str = "rnn{}{}",
    ends: bool = False,
) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["input"]
        with jax.named_scope("first"):
            x = x @ weights["first/weight"].T + weights["first/bias"]
        for layer in range(depth):
            made: list[Any] = []
            for at, suffix in enumerate(("", "_reverse")[:directions]):
                parts = {
                    name.split("/")[1].split("_l")[0]: each
                    for name, each in weights.items()
                    if name.endswith(f"_l{layer}{suffix}")
                }
                with jax.named_scope(scope.format(layer, suffix)):
                    right = wrong and (layer, at) not in wrong
                    made.append(_run(kind, "" if right else fault, parts, x, backwards=at == 1))
            made = [each[:, at - 1] for at, each in enumerate(made)] if ends else made
            x = jnp.concatenate(made, -1) if directions > 1 else made[0]
        with jax.named_scope("last"):
            y = x @ weights["last/weight"].T + weights["last/bias"]
        return jnp.square(y).mean()

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return gs.capture(loss, weights, {"input": READ}, origins=False)


FAULTS: Final = {
    "reset": ("GRU", "applies its reset gate to the state before the product", "to the product"),
    "bias behind": ("GRU", "adds the recurrent bias of the new state behind the reset gate", "before it"),
    "swapped": ("GRU", "multiplies the new state by the update gate", "1 less the update gate"),
    "order": ("GRU LSTM", "takes the parts of its weights for the gates ", ""),
    "relu": ("GRU LSTM RNN", "applies relu to its new states", "tanh to its new states"),
    "hard_sigmoid": ("GRU LSTM", "applies hard_sigmoid to its gates", "sigmoid to its gates"),
    "no bias of the states": ("GRU LSTM RNN", "adds no bias of the states", "one"),
    "forget": ("LSTM", "adds 1 to the argument of its forget gate", "0 to the argument of its forget gate"),
    "output": ("LSTM", "applies no function to its cell states", "tanh to its cell states"),
    "cell state": ("LSTM", "returns the cell state", "the hidden state"),
    "turned": ("GRU LSTM RNN", "runs from the other end", "from the end that its name says"),
    "initial": ("GRU RNN", "begins with another state", "with zeros"),
    "mask": ("GRU RNN", "keeps its state at some steps of some examples, as behind their lengths", "at none"),
}


#: Kind, directions, layers, and the faults: all of one layer, and of several one of each part of it.
SIZES: Final = [
    ("GRU", 1, 1, tuple(FAULTS)),
    pytest.param("GRU", 2, 1, ("swapped", "turned", "initial", "mask"), marks=pytest.mark.slow),
    pytest.param("GRU", 2, 2, ("reset", "order", "turned"), marks=pytest.mark.slow),
    pytest.param("LSTM", 1, 1, tuple(FAULTS), marks=pytest.mark.slow),
    ("LSTM", 2, 1, ("forget", "output", "turned")),
    pytest.param("RNN", 1, 1, tuple(FAULTS), marks=pytest.mark.slow),
    ("RNN", 1, 2, ("relu", "turned")),
]


@sampled(("kind", "directions", "depth", "faults"), SIZES)
def test_what_a_recurrent_layer_does_otherwise_is_told(
    kind: str, directions: int, depth: int, faults: tuple[str, ...]
) -> None:
    reference, weights = _reference(kind, directions=directions, depth=depth)
    sizes = {"directions": directions, "depth": depth}
    right = gs.compare(reference, _port(kind, "", weights, **sizes))
    assert right, right.sentence
    for fault, (kinds, cand, ref) in FAULTS.items():
        if fault not in faults or kind not in kinds.split():
            continue
        sentence = gs.compare(reference, _port(kind, fault, weights, **sizes)).sentence
        article = "a" if kind == "GRU" else "an"
        told = f" of {article} {kind} that in the candidate {cand}"
        assert told in sentence, (fault, sentence)
        assert f", and in the reference {ref}" in sentence, (fault, sentence)


@pytest.mark.slow
@pytest.mark.parametrize("directions", [1, 2])
def test_it_is_told_where_the_last_states_alone_are_read(directions: int) -> None:
    reference, weights = _reference("GRU", directions=directions, ends=True)
    right = gs.compare(reference, _port("GRU", "", weights, directions=directions, ends=True))
    assert right, right.sentence
    for fault in ("reset", "swapped", "order", "relu", "initial"):
        found = gs.compare(reference, _port("GRU", fault, weights, directions=directions, ends=True))
        _, cand, ref = FAULTS[fault]
        assert f" is of a GRU that in the candidate {cand}" in found.sentence, (fault, found.sentence)
        assert f", and in the reference {ref}" in found.sentence, (fault, found.sentence)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_state_is_no_other_iteration_of_a_port_than_its_last(kind: str) -> None:
    """PyTorch calls it `rnn.1`, and the second step of a loop in the scope `rnn` is `rnn[1]`."""
    reference, weights = _reference(kind)
    for fault, told in (("", ""), ("relu", "applies relu to its new states"), ("initial", "")):
        found = gs.compare(reference, _port(kind, fault, weights, scope="rnn"))
        assert (found.verdict == "different") is bool(fault), found.sentence
        assert told in found.sentence, found.sentence
        pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation"}
        assert pairs["rnn.0"] == "rnn", (fault, pairs)
        assert (pairs["rnn.1"] or f"rnn[{STEPS - 1}]").startswith(f"rnn[{STEPS - 1}]"), (fault, pairs)


@cache
def _small(fault: str, *, size: int, states: int) -> gs.Comparison:
    """Compares an LSTM that reads as many examples as steps with a port in a scope of its name."""
    torch.manual_seed(1)
    module = nn.Sequential()
    module.rnn, module.last = nn.LSTM(states, states, batch_first=True), nn.Linear(states, 2)
    module.forward = lambda x: module.last(module.rnn(x)[0])
    read = torch.rand(size, size, states)
    for parameter in module.rnn.parameters():
        nn.init.uniform_(parameter, 0 if states == 1 else -0.5, 0.5)
    weights = {name: each.detach().numpy().copy() for name, each in module.state_dict().items()}
    reference = capture(module, lambda y: y.square().mean(), {"x": read})

    def loss(weights: dict[str, Any], x: Any) -> Any:
        parts = {name.split(".")[1].split("_l")[0]: each for name, each in weights.items() if name.startswith("rnn")}

        def step(carried: tuple[Any, Any], x: Any) -> Any:
            sums = x @ parts["weight_ih"].T + parts["bias_ih"] + carried[0] @ parts["weight_hh"].T + parts["bias_hh"]
            i, f, g, o = jnp.split(sums, 4, -1)
            cell = jax.nn.sigmoid(f) * carried[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
            state = jax.nn.sigmoid(o) * (cell if fault == "output" else jnp.tanh(cell))
            return (state, cell), (carried[0] if fault == "late" else state)

        with jax.named_scope("rnn"):
            made = lax.scan(step, (jnp.zeros((size, states)),) * 2, x.swapaxes(0, 1))[1].swapaxes(0, 1)
        with jax.named_scope("last"):
            y = made @ weights["last.weight"].T + weights["last.bias"]
        return jnp.square(y).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.compare(reference, gs.capture(loss, weights, read.numpy(), origins=False))


@pytest.mark.slow
def test_the_states_of_a_layer_are_no_stack_of_the_first_results_of_iterations() -> None:
    found = _small("late", size=6, states=6)
    assert " that in the candidate " not in found.sentence, found.sentence
    pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation"}
    assert pairs["rnn.0"] == "rnn"
    assert _small("", size=6, states=6).verdict == "same"


@pytest.mark.slow
def test_no_form_is_told_where_several_others_make_what_the_layer_has() -> None:
    """Cell states that are positive are the same with a rectifier and without a function."""
    found = _small("output", size=8, states=1)
    assert found.verdict == "different"
    assert " that in the candidate " not in found.sentence, found.sentence


def test_it_is_told_of_one_direction_alone() -> None:
    reference, weights = _reference("GRU", directions=2)
    for fault, told in (
        ("reset", "to the state before the product in the direction from the end, and in the reference to the product"),
        ("initial", "begins with another state in the direction from the end, and in the reference with zeros"),
    ):
        assert told in gs.compare(reference, _port("GRU", fault, weights, directions=2, wrong=[(0, 1)])).sentence
    other = {name.replace("rnn", "cell"): weights[name.replace("_reverse", "")] for name in weights}
    told = "uses the weights of the other direction in the direction from the end, and in the reference its own"
    assert told in gs.compare(reference, _port("GRU", "", other, directions=2)).sentence


@pytest.mark.slow
def test_no_form_is_told_that_a_right_layer_may_have_beside_its_output() -> None:
    reference, weights = _reference("LSTM", directions=2)
    # Its cell states, and its second direction before that is turned.
    for fault in ("cell state", "reversed"):
        port = _port("LSTM", fault, weights, directions=2, wrong=[(0, 1)])
        assert " that in the candidate " not in gs.compare(reference, port).sentence


@pytest.mark.slow
def test_nothing_is_told_of_other_faults() -> None:
    reference, weights = _reference("GRU")
    for fault, scaled in (("", 1.01), ("reset", 1.01)):
        other = weights | {"rnn/weight_hh_l0": weights["rnn/weight_hh_l0"] * np.float32(scaled)}
        assert " that in the candidate " not in gs.compare(reference, _port("GRU", fault, other)).sentence


@pytest.mark.slow
def test_a_step_of_one_framework_needs_no_counterpart_where_all_names_are_the_reference_s() -> None:
    reference, weights = _reference("GRU", directions=2, depth=2)
    found = gs.compare(reference, _port("GRU", "", weights, directions=2, depth=2))
    assert found, found.sentence
    rows = {row.name: row for row in found.rows if row.family == "activation"}
    assert (rows["rnn.0"].status, rows["rnn.0"].counterpart) == ("same", "rnn1, rnn1_reverse")
    last = rows["rnn.1"]
    assert (last.status, last.counts, last.why) == ("missing", False, "a step between tensors that agree")
