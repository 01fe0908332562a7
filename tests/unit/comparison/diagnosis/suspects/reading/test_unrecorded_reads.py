"""Where neither program has a scope around a step, what the layer behind it reads tells that the step is at fault."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(37).normal
WIDTH, HEADS = 6, 2
NAMES = ("query", "key", "value", "out", "fc")
WEIGHTS = {name: (_draw(size=(WIDTH, WIDTH)) / 2).astype(np.float32) for name in NAMES}
TOKENS = _draw(size=(3, 5, WIDTH)).astype(np.float32)
KEPT = np.arange(5) < np.array([[5], [4], [2]])
KERNELS = [(_draw(size=(3, 3, size, 4)) / 4).astype(np.float32) for size in (2, 4)]
IMAGES = _draw(size=(3, 7, 7, 2)).astype(np.float32)


def _attention(fault: str = "", *, port: bool = False, tokens: Any = TOKENS) -> Dump:
    """An attention, and a dense layer behind an activation function; only projections have scopes."""

    def named(name: str) -> str:
        return f"{name}_proj" if port else name

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], HEADS, -1)

    def loss(weights: Any, batch: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(named(name)):
                return x @ weights[named(name)]

        x = batch["of_port" if port else "of_reference"]
        with jax.named_scope("mixer" if port else "block"):
            q, k, v = (heads(dense(name, x)) for name in NAMES[:3])
            scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / (1 if fault == "scale" else (WIDTH // HEADS) ** 0.5)
            kept = batch["kept"][:, None, None]
            scores = jnp.where(~kept if fault == "mask" else kept, scores, -1e9)
            x = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v)
            x = x.swapaxes(2, 3) if fault == "order" else x
            x = dense("out", x.reshape(*x.shape[:2], -1))
        x = jax.nn.gelu(x, approximate=True) if fault == "activation" else jax.nn.relu(x)
        x = dense("fc", x)
        return jnp.square(x).mean()

    weights = {named(name): WEIGHTS[name] * (1.1 if fault == name else 1) for name in NAMES}
    batch = {"of_port" if port else "of_reference": tokens, "kept": KEPT}
    return gs.capture(loss, weights, batch, origins=False)


@cache
def _convolutions(function: Any, *, names: tuple[str, str]) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        (x,) = batch.values()
        for name in names:
            x = function(x) if name == names[1] else x
            with jax.named_scope(name):
                x = lax.conv_general_dilated(
                    x, weights[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
        return jnp.square(x).mean()

    return gs.capture(loss, dict(zip(names, KERNELS, strict=True)), {f"of_{names[0]}": IMAGES}, origins=False)


ATTENTION = "`block/out` (rel_l2 {}), which reads an attention with"


@pytest.mark.slow
@sampled(
    ("fault", "sentence"),
    [
        ("scale", f"{ATTENTION} scores times 0.58, and in the candidate with scores times 1.0."),
        ("mask", f"{ATTENTION} `kept` as the mask, and in the candidate with the inverse of `kept` as the mask."),
        ("order", f"{ATTENTION} heads merged side by side, and in the candidate with heads merged feature by feature."),
        (
            "activation",
            "`fc` (rel_l2 {}), which reads the relu of `block/out`, and in the candidate the gelu by tanh.",
        ),
    ],
)
def test_a_step_without_an_entry_is_told_by_what_the_layer_behind_it_reads(fault: str, sentence: str) -> None:
    found = gs.compare(_attention(), _attention(fault, port=True))
    start, end = sentence.split("{}")
    assert found.sentence.startswith(f"Forward first differs at {start}"), found.sentence
    assert end in found.sentence
    assert "made here" not in found.sentence
    assert "names only" not in found.sentence  # the scope around returns what its last part does, under two names


@pytest.mark.slow
@pytest.mark.parametrize(("function", "words"), [(jax.nn.softplus, "softplus"), (lambda x: x, "plain value")])
def test_a_convolution_reads_another_function_of_the_value_before_it(function: Any, words: str) -> None:
    reference = _convolutions(jax.nn.elu, names=("conv1", "conv2"))
    found = gs.compare(reference, _convolutions(function, names=("down", "up")))
    assert f", which reads the elu of `conv1`, and in the candidate the {words}." in found.sentence
    assert gs.compare(reference, _convolutions(jax.nn.elu, names=("down", "up"))).verdict == "same"


@pytest.mark.slow
@sampled(("fault", "layer"), [("out", "block/out"), ("fc", "fc")])
def test_a_layer_that_reads_the_same_is_at_fault_itself(fault: str, layer: str) -> None:
    found = gs.compare(_attention(), _attention(fault, port=True))
    assert f"). Forward first differs at `{layer}` (" in found.sentence
    assert "reads" not in found.sentence


@pytest.mark.slow
def test_a_layer_that_reads_another_input_needs_no_step_before_it() -> None:
    found = gs.compare(_attention(), _attention(tokens=_draw(size=TOKENS.shape).astype(np.float32)))
    assert found.sentence.startswith("The runs start from different inputs (`of_reference`). Forward first differs at")
    assert "reads" not in found.sentence


@cache
def _normalised(fault: str = "") -> Dump:
    """A dense layer, a norm that reads an activation function of it, and a head; the norm has no kernel."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("dense"):
            x = batch @ weights["query"]
        x = jnp.cos(x) if fault == "before" else jnp.tanh(x)
        with jax.named_scope("norm"):
            x = x - x.mean(-1, keepdims=True)
            x = 1.1 * x if fault == "inside" else x
        with jax.named_scope("head"):
            return jnp.square(x @ weights["out"]).mean()

    return gs.capture(loss, WEIGHTS, TOKENS, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("before", ", in what it reads: a step that neither program has an entry for"),
        ("inside", "made here or right before it; it is 1.1 times the reference's)"),
    ],
)
def test_the_power_of_what_a_layer_without_a_kernel_reads_shows_whether_it_is_right(fault: str, where: str) -> None:
    sentence = gs.compare(_normalised(), _normalised(fault)).sentence
    assert sentence.startswith("Forward first differs at `norm` (rel_l2 ")
    assert where in sentence.partition(". Backward")[0]


@cache
def _mixed(fault: str = "", *, port: bool = False) -> Dump:
    """Returns the dump of a block that mixes positions, then features, of images whose pixels are merged before it."""
    draw = np.random.default_rng(8).normal
    weights = {"fc": WEIGHTS["fc"], "out": WEIGHTS["out"], "mixing": (draw(size=(8, 8)) / 3).astype(np.float32)}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("patch" if port else "stem"):
            x = batch["x"] @ weights["fc"]
        with jax.named_scope("layer" if port else "block"):
            x = x.reshape(3, 8, WIDTH)
            with jax.named_scope("norm"):
                rest = x - x.mean(-1, keepdims=True)
                variance = jnp.square(rest).mean(-1, keepdims=True)
                x = rest / jnp.sqrt(variance + (1e-2 if fault == "epsilon" else 1e-6))
            with jax.named_scope("positions"):
                mixed = x.swapaxes(1, 2) @ weights["mixing"]
            x = x + mixed.swapaxes(1, 2)
            with jax.named_scope("features"):
                mixed = jnp.tanh(x) @ weights["out"]
            x = x + (0.5 * mixed if fault == "half" else mixed)
        return jnp.square(x).mean()

    return gs.capture(loss, weights, {"x": draw(size=(3, 2, 4, WIDTH)).astype(np.float32)}, origins=False)


TERMS, LAST = "`block/norm` and `block/positions`", "`block/features`"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("epsilon", "made here; it adds 1.0e-2 to the variance, and the reference 1.0e-6"),
        (
            "half",
            f"), which adds up {TERMS} and {LAST}, and in the candidate {TERMS} and 0.50 times {LAST}.",
        ),
    ],
)
def test_what_is_read_may_have_its_axes_merged_or_moved(fault: str, words: str) -> None:
    assert gs.compare(_mixed(), _mixed(port=True)).verdict == "same"
    assert words in gs.compare(_mixed(), _mixed(fault, port=True)).sentence


@cache
def _recurrent(function: Any, *, names: tuple[str, str]) -> Dump:
    """A dense layer, an activation function, and a recurrent cell that a loop scans over what that makes."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(names[0]):
            x = batch @ weights[names[0]]["kernel"]
        x = function(x).swapaxes(0, 1)
        with jax.named_scope(names[1]):
            own = weights[names[1]]

            def step(h: Any, x: Any) -> Any:
                gate = jax.nn.sigmoid(x @ own["gate"] + h @ own["state"])
                return gate * h + (1 - gate) * jnp.tanh(x @ own["kernel"]), None

            h, _ = lax.scan(step, jnp.zeros((len(TOKENS), WIDTH)), x)
        return jnp.square(h).mean()

    kernels = {"kernel": WEIGHTS["key"], "gate": WEIGHTS["value"], "state": WEIGHTS["out"]}
    return gs.capture(loss, {names[0]: {"kernel": WEIGHTS["fc"]}, names[1]: kernels}, TOKENS, origins=False)


@pytest.mark.slow
@sampled(
    ("function", "words"),
    [(jnp.tanh, "tanh"), (lambda x: jnp.where(x > 0, x, 0.3 * x), "leaky_relu of slope 0.3")],
)
def test_a_loop_reads_another_function_of_the_value_before_it(function: Any, words: str) -> None:
    reference = _recurrent(jax.nn.relu, names=("embed", "rnn"))
    found = gs.compare(reference, _recurrent(function, names=("inputs", "cell")))
    assert found.sentence.startswith("Forward first differs at `rnn[0]` (rel_l2 ")
    assert f", which reads the relu of `embed`, and in the candidate the {words}." in found.sentence
    assert gs.compare(reference, _recurrent(jax.nn.relu, names=("inputs", "cell"))).verdict == "same"


@pytest.mark.slow
def test_a_function_that_may_be_inside_of_a_loop_is_not_told_to_be_left_out() -> None:
    reference = _recurrent(jax.nn.relu, names=("embed", "rnn"))
    found = gs.compare(reference, _recurrent(lambda x: x, names=("embed", "cell")))  # it may be inside of the cell
    assert "reads" not in found.sentence, found.sentence


@cache
def _gated(
    function: Any, gate: Any = lambda x: x, *, names: tuple[str, str, str], swapped: bool = False, scope: str = ""
) -> Dump:
    """A layer that reads a function of one value, which may have a scope, times another, or a function of that."""

    def loss(weights: Any, batch: Any) -> Any:
        (x,) = batch.values()
        made: list[Any] = []
        for name in names[:2]:
            with jax.named_scope(name):
                made.append(x @ weights[name])
        one, other = made[:: -1 if swapped else 1]
        with jax.named_scope(scope) if scope else nullcontext():
            one = function(one)
        x = one * gate(other)
        with jax.named_scope(names[2]):
            x = x @ weights[names[2]]
        return jnp.square(x).mean()

    weights = dict(zip(names, WEIGHTS.values(), strict=False))
    return gs.capture(loss, weights, {f"of_{names[0]}": TOKENS}, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "words"), [(jax.nn.relu, "relu"), (jnp.tanh, "tanh")])
@pytest.mark.parametrize("names", [("gate", "up", "down"), ("w1", "w3", "w2")])
def test_the_function_of_a_gate_is_told(function: Any, words: str, names: tuple[str, str, str]) -> None:
    reference = _gated(jax.nn.silu, names=("gate", "up", "down"))
    found = gs.compare(reference, _gated(function, names=names))
    assert f", which reads the silu of `gate` times `up`, and in the candidate the {words}." in found.sentence
    assert gs.compare(reference, _gated(jax.nn.silu, names=names)).verdict == "same"


@pytest.mark.slow
@pytest.mark.parametrize("of_ref", [True, False])
def test_so_it_is_where_one_program_has_an_entry_for_its_value(of_ref: bool) -> None:
    """The step itself is right: of the values before it the layer behind it reads another function."""
    scopes = ("act_fn", "") if of_ref else ("", "act_fn")
    names = ("gate", "up", "down"), ("w1", "w3", "w2")
    reference = _gated(jax.nn.silu, names=names[0], scope=scopes[0])
    found = gs.compare(reference, _gated(jnp.tanh, names=names[1], scope=scopes[1]))
    assert found.sentence.startswith("Forward first differs at `down` "), found.sentence
    assert ", which reads the silu of `gate` times `up`, and in the candidate the tanh." in found.sentence
    assert gs.compare(reference, _gated(jax.nn.silu, names=names[1], scope=scopes[1])).verdict == "same"


@pytest.mark.slow
@sampled("names", [("f", "g", "mix"), ("w1", "w3", "w2")])
def test_the_functions_of_both_layers_that_a_gated_unit_multiplies_are_told(names: tuple[str, str, str]) -> None:
    reference = _gated(jnp.tanh, jax.nn.sigmoid, names=("f", "g", "mix"))
    assert gs.compare(reference, _gated(jnp.tanh, jax.nn.sigmoid, names=names)).verdict == "same"
    for function, gate, swapped, words in (
        (jnp.tanh, jax.nn.sigmoid, True, "the sigmoid of `f` times the tanh of `g`"),
        (jax.nn.relu, jax.nn.sigmoid, False, "the relu of `f` times the sigmoid of `g`"),
        (jnp.tanh, jax.nn.hard_sigmoid, False, "the tanh of `f` times the hard_sigmoid of `g`"),
    ):
        found = gs.compare(reference, _gated(function, gate, names=names, swapped=swapped))
        read = f"which reads the tanh of `f` times the sigmoid of `g`, and in the candidate {words}."
        assert read in found.sentence, found.sentence


def _sigmoid_of_slope(x: Any) -> Any:
    return jnp.clip(0.2 * x + 0.5, 0, 1)


@cache
def _halves(function: Any, gate: Any, *, names: tuple[str, str], swapped: bool = False) -> Dump:
    """A layer that reads a function of one half of a value, times another function of the other half."""

    def loss(weights: Any, batch: Any) -> Any:
        (x,) = batch.values()
        with jax.named_scope(names[0]):
            x = x @ weights[names[0]]
        one, other = jnp.split(x, 2, -1)[:: -1 if swapped else 1]
        x = function(one) * gate(other)
        with jax.named_scope(names[1]):
            x = x @ weights[names[1]]
        return jnp.square(x).mean()

    kernels = [*WEIGHTS.values()]
    weights = {names[0]: kernels[0], names[1]: kernels[1][: kernels[0].shape[1] // 2]}
    return gs.capture(loss, weights, {f"of_{names[0]}": TOKENS}, origins=False)


@pytest.mark.slow
@sampled("names", [("up", "down"), ("w1", "w2")])
def test_what_a_gated_unit_makes_of_both_halves_of_a_value_is_told(names: tuple[str, str]) -> None:
    reference = _halves(jnp.tanh, jax.nn.sigmoid, names=("up", "down"))
    assert gs.compare(reference, _halves(jnp.tanh, jax.nn.sigmoid, names=names)).verdict == "same"
    own = "tanh of the first half times the sigmoid of the second"
    for function, gate, swapped, words in (
        (jnp.tanh, jax.nn.sigmoid, True, "sigmoid of the first half times the tanh of the second"),
        (
            jnp.tanh,
            _sigmoid_of_slope,
            False,
            "tanh of the first half times the hard_sigmoid of slope 0.2 of the second",
        ),
        (jax.nn.relu, jax.nn.sigmoid, False, "relu of the first half times the sigmoid of the second"),
        (lambda x: x, jax.nn.sigmoid, False, "first half times the sigmoid of the second"),
    ):
        found = gs.compare(reference, _halves(function, gate, names=names, swapped=swapped))
        assert f", which reads the {own} of `up`, and in the candidate the {words}." in found.sentence, found.sentence
    # A step that is no function of the halves is none.
    other = gs.compare(reference, _halves(lambda x: 1.1 * jnp.tanh(x) + 0.1, jax.nn.sigmoid, names=names))
    assert "first half" not in other.sentence


@cache
def _residual(names: tuple[str, str, str], *, stream: float = 1.0, branch: float = 1.0) -> Dump:
    """A layer whose result is read by a norm, which hides a factor, and by a residual sum, which does not."""

    def loss(weights: Any, batch: Any) -> Any:
        (x,) = batch.values()
        with jax.named_scope(names[0]):
            x = x @ weights[names[0]]
        x = x * stream
        with jax.named_scope(names[1]):
            with jax.named_scope("norm"):
                y = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True))
            with jax.named_scope("dense"):
                y = jnp.tanh(y @ weights[names[1]])
            x = x + branch * y
        with jax.named_scope(names[2]):
            x = x @ weights[names[2]]
        return jnp.square(x).mean()

    weights = dict(zip(names, WEIGHTS.values(), strict=False))
    return gs.capture(loss, weights, {f"of_{names[0]}": TOKENS}, origins=False)


@pytest.mark.slow
@sampled(
    ("factors", "words"),
    [
        ({"stream": 2.5}, "2.5 times `embed` and `block/dense`"),
        ({"branch": 0.5}, "`embed` and 0.50 times `block/dense`"),
    ],
)
@pytest.mark.parametrize("names", [("embed", "block", "head"), ("tokens", "layer", "out")])
def test_a_sum_of_other_multiples_is_told(factors: Any, words: str, names: tuple[str, str, str]) -> None:
    reference = _residual(("embed", "block", "head"))
    sentence = gs.compare(reference, _residual(names, **factors)).sentence
    told = f"), which adds up `embed` and `block/dense`, and in the candidate {words}. Backward"
    assert sentence.startswith("Forward first differs at `block` (rel_l2 "), sentence
    assert told in sentence, sentence
    assert gs.compare(reference, _residual(names)).verdict == "same"


@pytest.mark.slow
def test_a_layer_whose_bias_is_left_out_in_front_of_a_norm_reads_the_same() -> None:
    random = np.random.default_rng(5)
    first, kernel, bias, x = (random.normal(size=size).astype(np.float32) for size in ((4, 6), (6, 6), (6,), (8, 4)))

    def captured(names: tuple[str, str, str], *, biased: bool = True) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(names[0]):
                y = jnp.tanh(batch @ weights[names[0]])
            with jax.named_scope(names[1]):
                y = y @ weights[names[1]]["w"] + (weights[names[1]]["b"][None] if biased else 0.0)
            with jax.named_scope(names[2]):
                y = (y - y.mean(0)) * jax.lax.rsqrt(y.var(0) + 1e-5)[None]
            return jnp.square(y * jnp.arange(6.0)[None] - batch[:, :1]).mean()

        return gs.capture(loss, {names[0]: first, names[1]: {"w": kernel, "b": bias}}, x, origins=False)

    with jax.numpy_rank_promotion("allow"):
        found = gs.compare(captured(("fc1", "fc2", "bn")), captured(("a", "b", "norm"), biased=False)).sentence
    assert found.startswith("Forward first differs at `fc2` (")
    assert "in what it reads" not in found
