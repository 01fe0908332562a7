"""Of several steps that may be at fault, the likeliest is named first."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(13).normal
WEIGHTS = {name: (_draw(size=(6, 6)) / 2).astype(np.float32) for name in ("in", "gate", "out", "last")}
BATCH = {"x": _draw(size=(8, 6)).astype(np.float32), "noise": _draw(size=(8, 6)).astype(np.float32)}


@cache
def _pooled(*, port: bool, wrong: bool = False) -> Dump:
    """A well-known function and a sum over groups of different sizes, for which a port has no scopes."""
    groups = np.array([0, 0, 0, 1, 1, 2, 2, 2])

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "dense"):
            x = batch["x"] @ weights["in"]
        with nullcontext() if port else jax.named_scope("act"):
            x = jax.nn.elu(x)
        with nullcontext() if port else jax.named_scope("readout"):
            x = jax.ops.segment_sum(x, groups, 3) / (1.0 if wrong else np.array([[3.0], [2.0], [3.0]]))
        with jax.named_scope("Dense_1" if port else "head"):
            return jnp.square(jnp.tanh(x @ weights["out"])).mean()

    return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@pytest.mark.slow
def test_well_known_functions_come_after_what_a_program_computes_by_itself() -> None:
    reference = _pooled(port=False)
    assert gs.compare(reference, _pooled(port=True)).verdict == "same"
    found = gs.compare(reference, _pooled(port=True, wrong=True))
    assert [row.name for row in found.blame.suspects] == ["readout", "act"], found.sentence


@cache
def _sampled(*, port: bool, wrong: bool = False) -> Dump:
    """A sample that the loss reads beside a layer; the gradient of another term of the loss is a constant."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "dense"):
            x = batch["x"] @ weights["in"]
        with nullcontext() if port else jax.named_scope("sample"):
            z = x + jnp.exp(x / (4 if wrong else 2)) * batch["noise"]
        with jax.named_scope("Dense_1" if port else "hidden"):
            y = jnp.sin(z[:, :3] @ weights["gate"][:3])
        with jax.named_scope("Term_0" if port else "term"):
            total = y.sum(-1)
        with nullcontext() if port else jax.named_scope("divergence"):
            return (jnp.square(z).sum(-1) - total).mean()

    return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@pytest.mark.slow
def test_a_gradient_that_agrees_bears_out_no_value_beside_it() -> None:
    reference = _sampled(port=False)
    assert gs.compare(reference, _sampled(port=True)).verdict == "same"
    found = gs.compare(reference, _sampled(port=True, wrong=True))
    assert [row.name for row in found.blame.suspects] == ["sample"], found.sentence


@cache
def _cell(*, port: bool, stopped: str = "") -> Dump:
    """A gated cell, whose gates a port has in one scope."""

    def gate(name: str, *values: Any) -> Any:
        value = jax.nn.sigmoid(sum(x @ WEIGHTS_OF[name] for x, WEIGHTS_OF in values))
        return jax.lax.stop_gradient(value) if stopped == name else value

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "dense"):
            h = jnp.tanh(batch["x"] @ weights["in"])
        for number in range(2):
            with jax.named_scope(f"GRU_{number}" if port else f"gru{number}"):
                with nullcontext() if port else jax.named_scope("r"):
                    r = gate("gate", (h, weights))
                with nullcontext() if port else jax.named_scope("z"):
                    z = gate("out", (h, weights))
                with nullcontext() if port else jax.named_scope("n"):
                    n = jnp.tanh(r * (h @ weights["last"]))
                h = (1 - z) * n + z * h
        with jax.named_scope("Dense_1" if port else "head"):
            return jnp.square(h @ weights["head"]).mean()

    return gs.capture(loss, {**WEIGHTS, "head": WEIGHTS["in"][:, :2]}, BATCH, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "step"), [("gate", "gru1/r"), ("out", "gru1/z")])
def test_the_step_whose_parameters_get_no_gradient_comes_first(stopped: str, step: str) -> None:
    reference = _cell(port=False)
    assert gs.compare(reference, _cell(port=True)).verdict == "same"
    found = gs.compare(reference, _cell(port=True, stopped=stopped))
    assert found.first_divergence.backward_only
    assert found.blame.suspects[0].name == step, found.sentence


@cache
def _terms(*, port: bool, wrong: bool = False) -> Dump:
    """A loss of two terms, of which a port has neither in a scope."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "dense"):
            x = batch["x"] @ weights["in"]
        with jax.named_scope("Dense_1" if port else "head"):
            y = jnp.tanh(x @ weights["out"])
        with nullcontext() if port else jax.named_scope("likelihood"):
            one = jnp.square(y - batch["noise"]).sum(-1)
        with jax.named_scope("Dense_2" if port else "side"):
            z = batch["noise"] @ weights["gate"]
        with nullcontext() if port else jax.named_scope("prior"):  # what it sends to `side` is right
            other = (jnp.cosh(x) if wrong else jnp.square(x)).sum(-1) + z.sum(-1)
        return (one + other).mean()

    return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@pytest.mark.slow
def test_a_term_of_the_loss_is_named_where_the_values_that_it_reads_agree() -> None:
    reference = _terms(port=False)
    assert gs.compare(reference, _terms(port=True)).verdict == "same"
    found = gs.compare(reference, _terms(port=True, wrong=True))
    assert [row.name for row in found.blame.suspects] == ["prior"], found.sentence
    assert (
        "before it `likelihood`, `prior` are only in the reference. Backward first differs at `prior`, only in the"
        in (found.sentence)
    )


@cache
def _weighted(*, port: bool, stopped: bool = False) -> Dump:
    """A mean by weights, whose scores have a parameter of their own; a port has no scopes for either."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "dense"):
            x = batch["x"] @ weights["in"]
        with nullcontext() if port else jax.named_scope("scores"):
            scores = jnp.tanh(x) @ weights["vector"]
        with nullcontext() if port else jax.named_scope("shares"):
            shares = jnp.exp(scores) / jnp.exp(scores).sum()
        with jax.named_scope("Dense_1" if port else "head"):
            x = (jax.lax.stop_gradient(shares) if stopped else shares) @ batch["noise"] @ weights["out"]
        return jnp.square(x).mean()

    return gs.capture(loss, {**WEIGHTS, "vector": WEIGHTS["gate"][0]}, BATCH, origins=False)


@pytest.mark.slow
def test_a_step_without_parameters_comes_before_the_one_that_gets_no_gradient_through_it() -> None:
    reference = _weighted(port=False)
    assert gs.compare(reference, _weighted(port=True)).verdict == "same"
    found = gs.compare(reference, _weighted(port=True, stopped=True))
    assert [row.name for row in found.blame.suspects] == ["shares", "scores"], found.sentence


@cache
def _biased(*, packed: bool, lost: bool = False) -> Dump:
    """A gate and a value, each with a bias; a port has one bias for both, and one that is zero but for the value."""
    gate, value, inner = WEIGHTS["last"][:3]

    def loss(weights: Any, batch: Any) -> Any:
        x, z = batch["x"], batch["noise"]
        one, other = x @ weights["in"], z @ weights["out"]
        if packed:
            with jax.named_scope("GRU_0"):
                shift = jnp.zeros(12) if lost else weights["GRU_0"]["b_hh"]
                bias = jnp.split(weights["GRU_0"]["b_ih"], 2)
                g = jax.nn.sigmoid(one + bias[0] + shift[:6])
                h = jnp.tanh(one + bias[1] + g * (other + shift[6:]))
        else:
            with jax.named_scope("gru"):
                with jax.named_scope("gate"):
                    g = jax.nn.sigmoid(one + weights["gru"]["gate"])
                with jax.named_scope("value"):
                    h = jnp.tanh(one + weights["gru"]["value"] + g * (other + weights["gru"]["inner"]))
                h = h * 1.0
        with jax.named_scope("head"):
            return jnp.square(h @ weights["head"]).mean()

    own = {"gate": gate, "value": value, "inner": inner}
    joined = {"b_ih": np.concatenate([gate, value]), "b_hh": np.concatenate([np.zeros_like(gate), inner])}
    weights = {**WEIGHTS, "head": WEIGHTS["in"][:, :2], **({"GRU_0": joined} if packed else {"gru": own})}
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, BATCH, origins=False)


@pytest.mark.slow
def test_the_step_is_at_fault_whose_bias_the_other_program_leaves_out() -> None:
    reference = _biased(packed=False)
    right = gs.compare(reference, _biased(packed=True))
    assert right.verdict == "same", right.sentence
    found = gs.compare(reference, _biased(packed=True, lost=True))
    assert [row.name for row in found.blame.suspects] == ["gru/value"], found.sentence


@cache
def _scanned(*, scopes: bool, fault: bool = False) -> Dump:
    """A causal convolution whose padding is cut off behind it, a rectifier, and a state that adds up a selection."""
    draw = np.random.default_rng(6).normal
    weights = {"conv": (3, 6), "select": (6, 5), "out": (6, 6)}
    kernels = {name: draw(size=shape).astype(np.float32) for name, shape in weights.items()}

    def scope(name: str) -> Any:
        return jax.named_scope(name) if scopes or name in ("conv", "out") else nullcontext()

    def loss(weights: Any, x: Any) -> Any:
        with scope("conv"):
            padded = jnp.pad(x, ((0, 0), (2, 2), (0, 0)))
            y = sum(weights["conv"][tap][None, None] * padded[:, tap : tap + 6] for tap in range(3))
            y = jnp.asarray(y).swapaxes(1, 2)
        with scope("act"):
            y = jax.nn.silu(y[..., :4])
        with scope("select"):
            selected = y.swapaxes(1, 2) @ weights["select"]
        with nullcontext() if scopes else jax.named_scope("state"):
            step, into = jax.nn.softplus(selected[..., :1]), selected[..., 1:]
            into = into[..., ::-1] if fault else into
            y = jnp.cumsum(step * y.swapaxes(1, 2), 1) * into.sum(-1, keepdims=True) * into[..., :1]
        with scope("out"):
            y = y @ weights["out"]
        return jnp.square(y).mean()

    return gs.capture(loss, kernels, draw(size=(2, 4, 6)).astype(np.float32), origins=False)


def test_products_of_a_turned_value_and_functions_of_its_beginning_are_suspected_last() -> None:
    found = gs.compare(_scanned(scopes=True), _scanned(scopes=False, fault=True))
    says = "Forward first differs at `state`, only in the candidate, or at `act`, only in the reference, and next"
    assert found.sentence.startswith(says), found.sentence


FEATURES = [np.random.default_rng(61).normal(size=size).astype(np.float32) for size in ((4, 5), (4, 5), (10, 3))]


@cache
def _mixing(*, port: bool = False, swapped: bool = False) -> Dump:
    """Products and sums of the features of two layers, which only the port has a scope for, in one order or another."""
    names = ("Dense_0", "Dense_1", "Dense_2") if port else ("left", "right", "out")

    def loss(weights: Any, batch: Any) -> Any:
        made: list[Any] = []
        for name in names[:2]:
            with jax.named_scope(name):
                made.append(batch["x"] @ weights[name])
        with jax.named_scope("Mix_0") if port else nullcontext():
            parts = [made[0] * made[1], made[0] + made[1]]
            x = jnp.concatenate(parts[::-1] if swapped else parts, -1)
        with jax.named_scope(names[2]):
            x = x @ weights[names[2]]
        return jnp.square(x).mean()

    inputs = np.random.default_rng(62).normal(size=(7, 4)).astype(np.float32)
    return gs.capture(loss, dict(zip(names, FEATURES, strict=True)), {"x": inputs}, origins=False)


def test_a_step_that_makes_features_makes_their_order() -> None:
    assert gs.compare(_mixing(), _mixing(port=True))
    found = gs.compare(_mixing(), _mixing(port=True, swapped=True)).sentence
    assert found.startswith("Forward first differs at `Mix_0`, only in the candidate, and next at `out` ("), found
