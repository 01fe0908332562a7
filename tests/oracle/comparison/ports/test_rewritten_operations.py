"""Operations are called by their primitives and numbers: a layer that was rewritten has others, and no error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import gradscope as gs
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.data import drawn

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


def test_a_fault_of_a_rewritten_layer_is_one_in_that_layer() -> None:
    comparison = gs.compare(captured(written), captured(without_scale))
    assert comparison.verdict == "different"
    first = comparison.first_divergence.forward
    assert first is not None
    assert first.name.startswith("attn")
