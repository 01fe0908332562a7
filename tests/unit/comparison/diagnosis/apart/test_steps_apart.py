"""A term that one program adds in one layer, and the other elsewhere: what a later layer does is not blamed on it."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(7).normal
FROM_X, FROM_H = (_draw(size=(4, 6)).astype(np.float32) for _ in range(2))
BIAS, OTHER = (_draw(size=6).astype(np.float32) for _ in range(2))
HEAD = _draw(size=(6, 3)).astype(np.float32)
BATCH = {"x": _draw(size=(5, 4)).astype(np.float32), "h": _draw(size=(5, 4)).astype(np.float32)}


@cache
def _reference() -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("cell"):
            with jax.named_scope("from_x"):
                one = batch["x"] @ weights["from_x"]["kernel"] + weights["from_x"]["bias"][None]
            with jax.named_scope("from_h"):
                other = batch["h"] @ weights["from_h"]["kernel"]
            x = jnp.tanh(one + other)
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    weights = {"from_x": {"kernel": FROM_X, "bias": BIAS + OTHER}, "from_h": {"kernel": FROM_H}, "head": HEAD}
    return gs.capture(loss, weights, BATCH, origins=False)


@cache
def _candidate(fault: str = "") -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        own = weights["rnn"]
        with jax.named_scope("rnn"):
            with jax.named_scope("ih"):
                one = batch["x"] @ own["weight_ih"].T
                one = one if fault == "lost" else one + own["bias_ih"][None]
            with jax.named_scope("hh"):
                other = batch["h"] @ own["weight_hh"].T + own["bias_hh"][None]
            x = one + other
            x = jax.nn.sigmoid(x) if fault == "function" else jnp.tanh(x)
        with jax.named_scope("out"):
            return jnp.square(x @ weights["out"].T).mean()

    own = {"weight_ih": FROM_X.T, "weight_hh": FROM_H.T, "bias_ih": BIAS, "bias_hh": OTHER}
    own = {name: np.ascontiguousarray(weight) for name, weight in own.items()}
    return gs.capture(loss, {"rnn": own, "out": np.ascontiguousarray(HEAD.T)}, BATCH, origins=False)


@pytest.mark.parametrize(("fault", "first"), [("function", "cell"), ("lost", "cell/from_x")])
def test_a_sum_of_biases_is_no_fault_and_a_lost_term_is(fault: str, first: str) -> None:
    reference = _reference()
    assert gs.compare(reference, _candidate()).verdict == "same"
    found = gs.compare(reference, _candidate(fault))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == first, found.sentence
    assert found.sentence.startswith(f"Forward first differs at `{first}`"), found.sentence


def test_the_gradients_at_both_steps_are_a_pair() -> None:
    found = gs.compare(_reference(), _candidate())
    (row,) = (row for row in found.rows if (row.family, row.name) == ("activation_grad", "cell/from_x"))
    assert (row.counterpart, row.status) == ("rnn/ih", "same")


@cache
def _flow(*, port: bool, fault: str = "") -> Dump:
    """Two layers that each give the loss a term; one program adds them up on the way, and the other at the end."""

    def loss(weights: Any, batch: Any) -> Any:
        x, total, terms = batch["x"], 0.0, []
        for number in range(2):
            with jax.named_scope(f"flows.{number}" if port else f"coupling_{number}"):
                scale = jnp.tanh(x @ weights[f"w{number}"])
                x = jnp.sin(x) * jnp.exp(scale)
                terms.append(scale.sum(-1) * (2.0 if fault == "term" and number else 1.0))
                total = total + terms[-1]
        if port:
            total = terms[1] if fault == "lost" else terms[0] + terms[1]
        with jax.named_scope("out" if port else "head"):
            y = x @ weights["head"] * (1.5 if fault == "head" else 1.0)
        return (jnp.square(y).sum(-1) - total).mean()

    weights = {"w0": FROM_X[:, :4], "w1": FROM_H[:, :4], "head": FROM_X}
    return gs.capture(loss, weights, {"x": BATCH["x"]}, origins=False)


@pytest.mark.parametrize(("fault", "first"), [("head", "head"), ("term", "coupling_1.1")])
def test_terms_that_are_added_up_at_the_end_are_no_fault_and_another_one_is(fault: str, first: str) -> None:
    reference = _flow(port=False)
    assert gs.compare(reference, _flow(port=True)).verdict == "same"
    found = gs.compare(reference, _flow(port=True, fault=fault))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == first, found.sentence
    assert gs.compare(reference, _flow(port=True, fault="lost")).verdict == "different"


SQUARES = {name: (_draw(size=(8, 8)) / 2.5).astype(np.float32) for name in ("one", "two", "three", "four")}
VECTORS = {"scale": (1 + 0.2 * _draw(size=8)).astype(np.float32), "bias": (0.2 * _draw(size=8)).astype(np.float32)}
ROWS = _draw(size=(12, 8)).astype(np.float32)


def _layer_norm(x: Any, own: Any) -> Any:
    rest = x - x.mean(-1, keepdims=True)
    normed = rest / jnp.sqrt(jnp.square(rest).mean(-1, keepdims=True) + 1e-5)
    return normed * own["scale"][None] + own["bias"][None]


#: What one program does inside of a layer, and the other behind it.
STEPS: dict[str, Any] = {
    "factor": lambda x, _: 0.5 * x,
    "square": lambda x, _: jnp.square(x),
    "layer norm": _layer_norm,
    "length": lambda x, _: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
    "batch norm": lambda x, _: (x - x.mean(0, keepdims=True)) / jnp.sqrt(x.var(0, keepdims=True) + 1e-5),
}


@cache
def _chain(step: str, *, inside: bool, fault: str = "") -> Dump:
    """Four dense layers, of which the first has a step inside or behind it."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("one"):
            x = x @ weights["one"]
            x = x * (1 + 0.1 * weights["scale"][None]) if fault == "one" else x
            x = STEPS[step](x, weights) if inside else x
        with jax.named_scope("two"):
            x = x if inside or fault == "left" else STEPS[step](x, weights)
            x = jnp.tanh(x) @ weights["two"]
        for name in ("three", "four"):
            with jax.named_scope(name):
                x = jnp.tanh(x) @ weights[name] * (1.1 if fault == name else 1.0)
        return jnp.square(x).mean()

    return gs.capture(loss, SQUARES | VECTORS, ROWS, origins=False)


@sampled("inside", [True, False], ids=["reference inside", "reference behind"])
@sampled("step", STEPS)
def test_a_step_inside_of_a_layer_or_behind_it_under_one_name_is_no_fault(step: str, inside: bool) -> None:
    reference = _chain(step, inside=inside)
    found = gs.compare(reference, _chain(step, inside=not inside))
    assert found.verdict == "same", found.sentence
    # A batch norm takes no notice of what each feature is multiplied by: then the layer is right, too.
    own = [] if step == "batch norm" else ["one"]
    left = [("left", "one")] if inside else []  # the candidate takes the step nowhere
    for fault, first in [*((each, each) for each in (*own, "four")), *left]:
        found = gs.compare(reference, _chain(step, inside=not inside, fault=fault))
        assert found.sentence.startswith(f"Forward first differs at `{first}`"), (fault, found.sentence)


@cache
def _scaled(*, inside: bool, fault: str = "", dropout: bool = False) -> Dump:
    """Three dense layers, of which the second reads half of the first, perhaps behind a dropout that does nothing."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("one"):
            x = jnp.tanh(x) @ weights["one"] * (0.5 if inside else 1.0)
        x = x if inside else 0.5 * x
        if dropout:
            with jax.named_scope("drop"):
                x = x * 1.0
        with jax.named_scope("two"):
            x = x @ (weights["two"].T if fault == "transposed" else weights["two"])
            x = x + weights["bias"][None] if fault == "bias" else x * (1.1 if fault == "factor" else 1.0)
        with jax.named_scope("three"):
            x = jnp.tanh(x) @ weights["three"]
        return jnp.square(x).mean()

    return gs.capture(loss, SQUARES | VECTORS, ROWS, origins=False)


@sampled("inside", [True, False], ids=["reference inside", "reference behind"])
@pytest.mark.parametrize("fault", ["transposed", "bias"])
def test_a_fault_right_behind_a_factor_that_was_moved_is_told_and_not_the_factor(fault: str, inside: bool) -> None:
    found = gs.compare(_scaled(inside=inside), _scaled(inside=not inside, fault=fault))
    assert found.sentence.startswith("Forward first differs at `two`"), found.sentence


def test_a_factor_is_of_the_layer_or_of_what_it_reads() -> None:
    found = gs.compare(_scaled(inside=True), _scaled(inside=True, fault="factor"))
    assert found.sentence.startswith("Forward first differs at `two` (rel_l2 0.10, made here; it is 1.1 times the")
    without = gs.compare(_scaled(inside=True, dropout=True), _scaled(inside=True, fault="factor"))
    said = (
        "Forward differs at `two` (rel_l2 0.10; it is 1.1 times the reference's), and before it `drop` is only in the"
    )
    assert without.sentence.startswith(said)


@cache
def _deep(factor: float) -> Dump:
    """Eight layers, of which the second multiplies by a factor."""

    def loss(weights: Any, x: Any) -> Any:
        for number, name in enumerate((*SQUARES, *SQUARES)):
            with jax.named_scope(f"layer{number}"):
                x = jnp.tanh(x @ weights[name] * (factor if number == 1 else 1.0))
        return -jax.nn.log_softmax(x)[:, 0].mean()

    return gs.capture(loss, SQUARES, ROWS, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0002, 1.0003])
def test_a_factor_that_the_tolerance_hides_in_gradients_is_not_taken_for_one_that_was_moved(factor: float) -> None:
    found = gs.compare(_deep(1.0), _deep(factor))
    assert found.sentence.startswith("Forward first differs at `layer1`"), found.sentence
