"""A value that a softmax does not depend on has a gradient of nothing but rounding, whatever step has no scope."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.data import drawn

NODES, FEATURES = 7, 5
WEIGHTS = {"lin": drawn(1, FEATURES, FEATURES), "src": drawn(2, FEATURES, 1), "dst": drawn(3, FEATURES, 1)}
BATCH = {"x": drawn(4, NODES, FEATURES)}


def _attention(*, ported: bool, dtype: Any = jnp.float32) -> gs.Dump:
    """A graph attention of dense scores: what a node's own scores add is the same for all of its neighbours."""

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        weights, batch = jax.tree.map(lambda each: each.astype(dtype), (weights, batch))
        with jax.named_scope("conv" if ported else "attention"):
            with jax.named_scope("lin"):
                hidden = batch["x"] @ weights["lin"]
            with jax.named_scope("src"):
                own = hidden @ weights["src"]
            with jax.named_scope("dst"):
                others = hidden @ weights["dst"]
            scores = own + others.T
            if ported:
                powers = jnp.exp(scores - scores.max(1, keepdims=True))
                x = (powers / powers.sum(1, keepdims=True)) @ hidden
            else:
                x = jax.nn.softmax(scores, axis=1) @ hidden
        return jnp.square(x.astype(jnp.float32)).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@pytest.mark.slow
def test_the_gradient_of_what_a_softmax_does_not_depend_on_is_no_difference() -> None:
    ref, cand = _attention(ported=False), _attention(ported=True)
    name = "activation_grad/attention/src"
    one, two = np.asarray(ref.source.array(name)), np.asarray(cand.source.array(name.replace("attention", "conv")))
    assert np.linalg.norm(two - one) > 0.1 * np.linalg.norm(one)
    found = gs.compare(ref, cand)
    assert found.verdict == "same", found.sentence
    narrow = gs.compare(ref, _attention(ported=True, dtype=jnp.bfloat16))
    assert narrow.verdict == "same", narrow.sentence


def _biased(*, ported: bool, dtype: Any = jnp.float32) -> gs.Dump:
    """An attention with a number of each query and head added to its scores, which no softmax depends on."""
    names = ("query", "key", "value", "bias", "out")
    shapes = [(16, 16)] * 3 + [(16, 4), (16, 16)]
    weights = {name: drawn(at, *shape) / 4 for at, (name, shape) in enumerate(zip(names, shapes, strict=True))}

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        weights, batch = jax.tree.map(lambda each: each.astype(dtype), (weights, batch))
        made = {}
        for name in names[:4]:
            with jax.named_scope(name):
                made[name] = batch["x"] @ weights[name]
        query, key, value = (made[name].reshape(3, 7, 4, 4) for name in names[:3])
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / 2 + made["bias"].transpose(0, 2, 1)[..., None]
        powers = jnp.exp(scores - scores.max(-1, keepdims=True))
        shares = powers / powers.sum(-1, keepdims=True) if ported else jax.nn.softmax(scores)
        with jax.named_scope("out"):
            x = jnp.einsum("nhqk,nkhd->nqhd", shares, value).reshape(3, 7, 16) @ weights["out"]
        return jnp.square(x.astype(jnp.float32)).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": drawn(9, 3, 7, 16)}, origins=False)


@pytest.mark.slow
def test_rounding_of_two_programs_has_nothing_in_common() -> None:
    found = gs.compare(_biased(ported=False), _biased(ported=True))
    assert found.verdict == "same", found.sentence
    narrow = gs.compare(_biased(ported=False), _biased(ported=True, dtype=jnp.bfloat16))
    assert narrow.verdict == "same", narrow.sentence


@pytest.mark.slow
def test_the_gradient_of_what_the_loss_does_not_depend_on_is_no_difference() -> None:
    """A value is added to the advantages of all actions, and the loss reads both."""

    def duel(*, ported: bool) -> gs.Dump:
        def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
            with jax.named_scope("value"):
                value = batch["x"] @ weights["src"] + weights["bias"]
            with jax.named_scope("advantage"):
                advantage = batch["x"] @ weights["lin"]
            logits = value + advantage
            actions = jnp.arange(NODES) % FEATURES
            if ported:
                return (jax.nn.logsumexp(logits, 1) - logits[jnp.arange(NODES), actions]).mean()
            return -jnp.log(jax.nn.softmax(logits))[jnp.arange(NODES), actions].mean()

        with jax.numpy_rank_promotion("allow"):
            return gs.capture(loss, {**WEIGHTS, "bias": drawn(5, 1)}, BATCH, origins=False)

    found = gs.compare(duel(ported=False), duel(ported=True))
    assert found.verdict == "same", found.sentence


def _tilted(x: Any, times: Any) -> Any:
    """Returns a value whose gradient is multiplied."""
    with jax.numpy_rank_promotion("allow"):
        return x + (times - 1) * (x - jax.lax.stop_gradient(x))


@pytest.mark.slow
@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize("unit", [1e4, 1e6])
def test_the_gradient_of_a_value_in_a_large_unit_is_none_of_rounding(unit: float, is_wrong: bool) -> None:
    """Its gradient is as much smaller than that of what it is multiplied by as the value is larger."""

    def product(times: Any) -> gs.Dump:
        def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
            with jax.named_scope("lin"):
                hidden = unit * batch["x"] @ weights["lin"]
            with jax.named_scope("other"):
                other = batch["x"] @ weights["lin"] / unit
            x = _tilted(hidden, times) * other
            with jax.named_scope("out"):
                x = x @ weights["src"]
            return jnp.square(x).mean()

        weights = {name: WEIGHTS[name] for name in ("lin", "src")}
        return gs.capture(loss, weights, BATCH, origins=False)

    signs = jnp.where(jnp.arange(NODES)[:, None] % 2, -1.0, 1.0)
    found = gs.compare(product(1.0), product(signs if is_wrong else 1.0))
    assert found.verdict == ("different" if is_wrong else "same"), found.sentence
    assert not is_wrong or "backward first differs at `lin`" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.0, 1.5, -1.0])
def test_a_multiple_of_a_gradient_is_none_of_rounding(times: float) -> None:
    """However little a layer reads of a value, rounding of two programs is no multiple of each other."""

    def branch(times: float) -> gs.Dump:
        def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
            with jax.named_scope("lin"):
                hidden = batch["x"] @ weights["lin"]
            x = batch["x"] + 1e-8 * jnp.tanh(_tilted(hidden, times))
            with jax.named_scope("out"):
                x = x @ weights["src"]
            return jnp.square(x).mean()

        weights = {name: WEIGHTS[name] for name in ("lin", "src")}
        return gs.capture(loss, weights, BATCH, origins=False)

    found = gs.compare(branch(1.0), branch(times))
    assert found.verdict == ("same" if times == 1.0 else "different"), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.0, 1.5])
def test_the_gradient_of_a_branch_that_adds_very_little_is_none_of_rounding(times: float) -> None:
    """ConvNeXt scales its branches by 1e-6 at first, and Adam follows gradients of any size."""

    def branch(*, backward: float) -> gs.Dump:
        def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
            with jax.named_scope("lin"):
                hidden = batch["x"] @ weights["lin"]
            tilted = backward * hidden - jax.lax.stop_gradient((backward - 1) * hidden)
            with jax.named_scope("block"):
                x = batch["x"] + 1e-6 * jnp.tanh(tilted)
            return jnp.square(x).mean()

        return gs.capture(loss, {"lin": WEIGHTS["lin"]}, BATCH, origins=False)

    found = gs.compare(branch(backward=1.0), branch(backward=times))
    assert found.verdict == ("same" if times == 1.0 else "different")


@cache
def _cross_attention(*, ported: bool) -> gs.Dump:
    """Learned queries attend to each other without a scope before they have read anything: all values are the same."""
    names = ("query", "key", "value", "out")
    weights = {name: {"kernel": drawn(at, 16, 16) / 4, "bias": drawn(at + 4, 16)} for at, name in enumerate(names)}
    weights |= {"queries": {"kernel": drawn(8, 5, 16)}}

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        def dense(name: str, x: Any) -> Any:
            return x @ weights[name]["kernel"] + weights[name]["bias"]

        x = jnp.zeros((3, 5, 16))
        own = x + weights["queries"]["kernel"]
        query, key, value = (
            dense(name, each).reshape(3, 5, 2, 8) for name, each in zip(names, (own, own, x), strict=False)
        )
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / 8**0.5
        if ported:
            powers = jnp.exp(scores - scores.max(-1, keepdims=True))
            shares = powers / powers.sum(-1, keepdims=True)
        else:
            shares = jax.nn.softmax(scores)
        x = dense("out", jnp.einsum("nhqk,nkhd->nqhd", shares, value).reshape(3, 5, 16))
        return jnp.square(x - batch["y"]).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"y": drawn(9, 3, 5, 16)}, origins=False)


@pytest.mark.slow
def test_the_gradient_of_the_queries_of_equal_values_is_no_difference() -> None:
    ref, cand = _cross_attention(ported=False), _cross_attention(ported=True)
    one, two = (np.asarray(each.source.array("param_grad/query/kernel")) for each in (ref, cand))
    assert np.linalg.norm(two - one) > 0.1 * np.linalg.norm(one)
    for found in (gs.compare(ref, cand), gs.compare(cand, ref)):
        assert found.verdict == "same", found.sentence


def _summed(factors: np.ndarray, *, lost: int = 0) -> gs.Dump:
    """A dense layer whose gradients are some factors; that of its bias may lack the last of them."""

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        with jax.named_scope("dense"):
            bias = weights["dense"]["bias"]
            kept = jnp.arange(len(factors))[:, None] < len(factors) - lost
            y = batch["x"] @ weights["dense"]["kernel"] + jnp.where(kept, bias, jax.lax.stop_gradient(bias))
        return (y * batch["factors"]).sum() + 1e3

    weights = {"dense": {"kernel": drawn(1, 6, 4), "bias": drawn(2, 4)}}
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": drawn(3, 64, 6), "factors": factors}, origins=False)


@pytest.mark.slow
def test_a_small_sum_of_gradients_that_agree_may_be_apart_by_their_differences() -> None:
    factors = drawn(5, 64, 4)
    factors += (0.82 - factors.sum(0, keepdims=True)) / 64  # 0.82 of the 8 that 64 such factors add up to at random
    moved = factors + np.float32(9e-5) * drawn(6, 64, 4)
    found = gs.compare(_summed(factors), _summed(moved))
    assert found.verdict == "same", found.sentence
    (row,) = (row for row in found.rows if (row.family, row.name) == ("param_grad", "dense/bias"))
    assert row.metrics["rel_l2"] > row.tolerance
    assert "differences of its 64 terms, which agree" in row.why
    assert gs.compare(_summed(factors), _summed(moved, lost=1)).verdict == "different"
