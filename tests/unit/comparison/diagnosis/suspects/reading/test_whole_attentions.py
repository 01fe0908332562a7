"""What an attention does differently is told where one program has all of it as one layer, with packed parameters."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn
from tests.support.sampled import sampled

EXAMPLES, LENGTH, FEATURES, HEADS = 3, 7, 16, 4
WIDTH = FEATURES // HEADS
PACKED, SHIFTS = drawn(1, 3 * FEATURES, FEATURES), drawn(2, 3 * FEATURES)
MERGING, BIAS = drawn(3, FEATURES, FEATURES), drawn(4, FEATURES)
X, HEAD = drawn(5, EXAMPLES, LENGTH, FEATURES), drawn(6, FEATURES, 5)
MASK = np.tril(np.ones((LENGTH, LENGTH), np.bool_))


def _attended(query: Any, key: Any, value: Any, fault: str = "") -> Any:
    """Returns the attention of values `[examples, positions, heads, features]`, with a causal mask."""
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / (1.0 if fault == "scale" else WIDTH**0.5)
    mask = {"none": np.ones_like(MASK), "later": MASK.T}.get(fault, MASK)
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), value)


def _captured(attention: Any, weights: Any) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("attn"):
            x = attention(weights["attn"], batch["x"])
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, {"attn": weights, "head": HEAD}, {"x": X}, origins=False)


@cache
def _whole() -> Dump:
    def attention(weights: Any, x: Any) -> Any:
        parts = jnp.split(x @ weights["in_weight"].T + weights["in_bias"], 3, axis=-1)
        made = _attended(*(each.reshape(EXAMPLES, LENGTH, HEADS, WIDTH) for each in parts)).reshape(x.shape)
        return made @ weights["out_weight"].T + weights["out_bias"]

    return _captured(attention, {"in_weight": PACKED, "in_bias": SHIFTS, "out_weight": MERGING, "out_bias": BIAS})


@cache
def _in_parts(fault: str = "") -> Dump:
    order = ("key", "query", "value") if fault == "exchanged" else ("query", "key", "value")
    kernels = [each.T.reshape(FEATURES, HEADS, WIDTH) for each in np.split(PACKED, 3)]
    shifts = [each.reshape(HEADS, WIDTH) for each in np.split(SHIFTS, 3)]
    weights = {
        name: {"kernel": kernel, "bias": shift} for name, kernel, shift in zip(order, kernels, shifts, strict=True)
    }

    def attention(weights: Any, x: Any) -> Any:
        parts: dict[str, Any] = {}
        for name in ("query", "key", "value"):
            with jax.named_scope(name):
                parts[name] = jnp.einsum("nld,dhw->nlhw", x, weights[name]["kernel"]) + weights[name]["bias"]
        made = _attended(**parts, fault=fault)
        with jax.named_scope("out"):
            return jnp.einsum("nlhw,hwd->nld", made, weights["out"]["kernel"]) + weights["out"]["bias"]

    return _captured(attention, {**weights, "out": {"kernel": MERGING.T.reshape(HEADS, WIDTH, FEATURES), "bias": BIAS}})


@pytest.mark.slow
def test_a_right_port_is_the_same() -> None:
    assert gs.compare(_whole(), _in_parts()).verdict == "same"


@sampled(
    ("fault", "own", "other"),
    [
        ("none", "a causal mask", "no mask"),
        ("later", "a causal mask", "a mask of later positions alone"),
        ("scale", "scores times 0.50", "scores times 1.0"),
        (
            "exchanged",
            "`attn/key` as the query and `attn/query` as the key",
            "`attn/query` as the query and `attn/key` as the key",
        ),
    ],
)
def test_what_a_port_does_differently_that_has_it_in_parts_is_told(fault: str, own: str, other: str) -> None:
    sentence = gs.compare(_whole(), _in_parts(fault)).sentence
    assert f", which computes an attention with {own}, and in the candidate with {other}." in sentence, sentence
