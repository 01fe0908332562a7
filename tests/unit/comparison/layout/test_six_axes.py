"""Attention in windows of an image, whose packed heads are an array of six axes in one program and of three in one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

# The examples, windows, positions of each, heads, and the width of each.
BATCH, WINDOWS, TOKENS, HEADS, WIDTH = 2, 4, 5, 2, 3
_draw = np.random.default_rng(3).normal
PACKED = _draw(size=(HEADS * WIDTH, 3, HEADS, WIDTH)).astype(np.float32)
OUT = _draw(size=(HEADS * WIDTH, HEADS * WIDTH)).astype(np.float32)
X = _draw(size=(BATCH, WINDOWS, TOKENS, HEADS * WIDTH)).astype(np.float32)


def _attention(q: Any, k: Any, v: Any, out: Any, name: str) -> Any:
    weights = jax.nn.softmax(jnp.einsum("...qhd,...khd->...hqk", q, k) * WIDTH**-0.5)
    mixed = jnp.einsum("...hqk,...khd->...qhd", weights, v)
    with jax.named_scope(name):
        return jnp.square(mixed.reshape(*mixed.shape[:-2], -1) @ out).mean()


def _reference(windows: int) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("qkv"):
            packed = batch["x"].reshape(-1, TOKENS, HEADS * WIDTH) @ weights["qkv"]
        q, k, v = jnp.split(packed, 3, -1)
        apart = (-1, TOKENS, HEADS, WIDTH)
        return _attention(q.reshape(apart), k.reshape(apart), v.reshape(apart), weights["proj"], "proj")

    weights = {"qkv": PACKED.reshape(HEADS * WIDTH, -1), "proj": OUT}
    return gs.capture(loss, weights, {"x": X[:, :windows]}, origins=False)


def _candidate(windows: int, *, exchanged: bool) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("attention/qkv"):
            packed = jnp.einsum("bwnc,chkd->bwnhkd", batch["x"], weights["qkv"])
        q, k, v = (packed[..., part, :] for part in ((0, 2, 1) if exchanged else (0, 1, 2)))
        return _attention(q, k, v, weights["out"], "attention/out")

    weights = {"qkv": np.ascontiguousarray(PACKED.transpose(0, 2, 1, 3)), "out": OUT}
    return gs.capture(loss, weights, {"x": X[:, :windows]}, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [1, WINDOWS])
def test_packed_heads_of_windows_are_read_by_heads_and_by_thirds(windows: int) -> None:
    found = gs.compare(_reference(windows), _candidate(windows, exchanged=False))
    assert found.verdict == "same", found.sentence
    assert {(row.family, row.name): row.status for row in found.rows}["activation", "qkv"] == "same"


@pytest.mark.parametrize("windows", [1, WINDOWS])
def test_keys_in_place_of_values_are_a_fault_of_what_reads_them(windows: int) -> None:
    found = gs.compare(_reference(windows), _candidate(windows, exchanged=True))
    assert found.verdict == "different"
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "proj", found.sentence
