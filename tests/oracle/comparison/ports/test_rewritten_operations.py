"""Operations are called by their primitives and numbers: a layer that was rewritten has others, and no error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.data import drawn
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

LENGTH, SIZE = 5, 8
PARAMS = {name: drawn(seed, SIZE, SIZE) / SIZE**0.5 for seed, name in enumerate(("q", "k", "v", "out"))}
X = drawn(7, 3, LENGTH, SIZE)
MASK = np.tril(np.ones((LENGTH, LENGTH), bool))

Attention = Callable[[Mapping[str, Any], Array], Array]


def written(params: Mapping[str, Any], x: Array) -> Array:
    query, key, value = (x @ params[name] for name in "qkv")
    scores = query @ key.swapaxes(-1, -2) / SIZE**0.5
    return jax.nn.softmax(jnp.where(MASK, scores, -1e9)) @ value


def rewritten(params: Mapping[str, Any], x: Array, scale: float = SIZE**-0.5) -> Array:
    query, key, value = jnp.split(x @ jnp.concatenate([params[name] for name in "qkv"], 1), 3, -1)
    scores = jnp.einsum("bqd,bkd->bqk", query * scale, key)
    weights = jnp.where(MASK, jnp.exp(scores), 0)
    return jnp.einsum("bqk,bkd->bqd", weights, value) / weights.sum(-1, keepdims=True)


def without_scale(params: Mapping[str, Any], x: Array) -> Array:
    return rewritten(params, x, 1.0)


def captured(attention: Attention) -> MemoryDump:
    def loss(params: Any, x: Any) -> Any:
        with jax.named_scope("attn"):
            x = attention(params, x)
        with jax.named_scope("out"):
            x = x @ params["out"]
        return jnp.square(x).mean()

    return gs.capture(loss, PARAMS, X, ops=True, origins=False)


def test_other_operations_of_a_rewritten_layer_are_no_difference() -> None:
    one, other = captured(written), captured(rewritten)
    assert {"activation/attn/exp", "activation/attn/dot_general#2"} <= {*one} & {*other}
    for reference, candidate in ((one, other), (other, one)):
        comparison = gs.compare(reference, candidate)
        assert comparison.verdict == "same", comparison.sentence
        assert not [row.name for row in comparison.rows if row.counts and row.status != "same"]


@pytest.mark.slow
def test_a_fault_of_a_rewritten_layer_is_one_in_that_layer() -> None:
    comparison = gs.compare(captured(written), captured(without_scale))
    assert comparison.verdict == "different"
    first = comparison.first_divergence.forward
    assert first is not None
    assert first.name.startswith("attn")


@cache
def _classified(logits: Callable[[Any, Any], Array], loss: Callable[[Array, Any], Array]) -> MemoryDump:
    """A classifier of tokens behind an attention, whose keys have a bias that rounding alone has a gradient of."""
    params = {**PARAMS, "bias": drawn(8, SIZE)}

    def of_batch(params: Any, batch: Any) -> Any:
        with jax.named_scope("k"):
            key = logits(params, batch["x"])
        with jax.named_scope("attn"):
            shares = jax.nn.softmax(batch["x"] @ params["q"] @ key.swapaxes(-1, -2))
            x = shares @ batch["x"]
        return loss(x @ params["out"], batch["y"])

    batch = {"x": X, "y": np.arange(3 * LENGTH).reshape(3, LENGTH) % SIZE}
    return gs.capture(of_batch, params, batch, ops=True, origins=False)


def _dense(params: Any, x: Array) -> Array:
    return x @ params["k"] + params["bias"][None, None]


def _broadcast(params: Any, x: Array) -> Array:
    return x @ params["k"] + jnp.broadcast_to(params["bias"], x.shape)


def _by_log_softmax(logits: Array, label: Any) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], -1).mean()


def _by_logsumexp(logits: Array, label: Any) -> Array:
    picked = jnp.take_along_axis(logits, label[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def _by_product(logits: Array, label: Any) -> Array:
    kept = jax.nn.softmax(logits) * jax.nn.one_hot(label, SIZE)
    return -jnp.log(kept.sum(-1)).sum() / label.size


def _of_another_label(logits: Array, label: Any) -> Array:
    return _by_logsumexp(logits, (label + 1) % SIZE)


@pytest.mark.slow
@sampled("loss", [_by_logsumexp, _by_product])
@pytest.mark.parametrize("dense", [_dense, _broadcast])
def test_other_operations_of_a_loss_are_no_difference(
    dense: Callable[[Any, Any], Array], loss: Callable[[Array, Any], Array]
) -> None:
    one, other = _classified(_dense, _by_log_softmax), _classified(dense, loss)
    for reference, candidate in ((one, other), (other, one)):
        found = gs.compare(reference, candidate)
        assert found, (found.sentence, [(row.family, row.name, row.why) for row in found.rows if row.status != "same"])


def test_another_loss_of_other_operations_is_a_difference() -> None:
    found = gs.compare(_classified(_dense, _by_log_softmax), _classified(_broadcast, _of_another_label))
    assert found.verdict == "different"


@cache
def _sequences(*, batch_first: bool, scale: float = 1.0) -> Dump:
    """A recurrent sum over time, with the batch or the time first, under the same names."""

    def loss(weights: dict[str, Any], batch: Any) -> Any:
        x = batch if batch_first else batch.swapaxes(0, 1)
        with jax.named_scope("up"):
            x = x @ weights["up"]
        with jax.named_scope("sum"):
            x = scale * jnp.cumsum(x, 1 if batch_first else 0)
        with jax.named_scope("act"):
            x = jnp.tanh(x)
        return jnp.square(x.mean(1 if batch_first else 0) @ weights["down"]).mean()

    keys = jax.random.split(jax.random.key(0), 3)
    weights = {"up": jax.random.normal(keys[0], (4, 6)), "down": jax.random.normal(keys[1], (6, 2))}
    return gs.capture(loss, weights, jax.random.normal(keys[2], (3, 5, 4)), origins=False)


@pytest.mark.slow
def test_values_of_one_name_may_have_their_axes_in_another_order() -> None:
    reference, other = _sequences(batch_first=True), _sequences(batch_first=False)
    for found in (gs.compare(reference, other), gs.compare(other, reference)):
        assert found.verdict == "same", found.sentence
        turned = {row.name for row in found.rows if row.made_by == "transpose [1, 0, 2]"}
        assert turned == {"up", "sum", "act"}
    wrong = gs.compare(reference, _sequences(batch_first=False, scale=1.01))
    assert wrong.verdict == "different"
    assert wrong.first_divergence.forward is not None
    assert wrong.first_divergence.forward.name == "sum"
