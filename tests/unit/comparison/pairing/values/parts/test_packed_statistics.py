"""Statistics show a packed weight to be its parts, so that the layers of the parts count no more than in a port."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.comparison.result import Comparison

RANDOM = np.random.default_rng(3)
PARTS = {name: RANDOM.normal(size=(6, 6)).astype(np.float32) for name in ("q", "k", "v")}
OUT = RANDOM.normal(size=(6, 2)).astype(np.float32)
BATCH = {"x": RANDOM.normal(size=(4, 3, 6)).astype(np.float32)}


def _attention(*, packed: bool, order: str = "qkv") -> gs.Dump:
    """Returns the statistics of an attention that has one weight for queries, keys and values, or three."""

    def project(weights: Any, x: Any) -> Any:
        if packed:
            with jax.named_scope("qkv"):
                whole = x @ weights["qkv"]["w"]
            return jnp.split(whole, 3, -1)
        made = []
        for name in "qkv":
            with jax.named_scope(name):
                made.append(x @ weights[name]["w"])
        return made

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("attn"):
            q, k, v = project(weights["attn"], batch["x"])
            with jax.named_scope("out"):
                read = jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2), -1) @ v
                return jnp.square(read @ weights["attn"]["out"]["w"]).mean()

    apart = {name: {"w": each} for name, each in PARTS.items()}
    whole = {"qkv": {"w": np.concatenate([PARTS[name] for name in order], -1)}}
    weights = {"attn": {**(whole if packed else apart), "out": {"w": OUT}}}
    return gs.capture(loss, weights, BATCH, stats_only=True, origins=False)


def _both_ways(*, order: str = "qkv") -> list[Comparison]:
    dumps = _attention(packed=False), _attention(packed=True, order=order)
    return [gs.compare(*dumps), gs.compare(*reversed(dumps))]


def test_layers_of_packed_weights_count_in_neither_direction_where_all_agrees() -> None:
    assert [each.verdict for each in _both_ways()] == ["same", "same"], [each.sentence for each in _both_ways()]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["kqv", "vkq"])
def test_a_weight_that_is_packed_in_another_order_is_a_difference_in_both_directions(order: str) -> None:
    assert [each.verdict for each in _both_ways(order=order)] == ["different", "different"]
