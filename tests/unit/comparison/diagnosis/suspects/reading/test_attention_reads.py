"""An attention without an entry of its own is told where a dense layer behind it shows what it is in both programs."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn

EXAMPLES, LENGTH, FEATURES = 2, 4, 6
KERNELS = {name: drawn(number, FEATURES, FEATURES) for number, name in enumerate("qkvo")}
BATCH = {"x": drawn(9, EXAMPLES, LENGTH, FEATURES), "mask": jnp.array([[1, 1, 1, 0], [1, 1, 0, 0]])}


def captured(fault: str = "", *, packed: bool = False) -> gs.Dump:
    """Returns the dump of an attention with two heads and a mask, whose layers have entries alone."""

    def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
        if packed:
            with jax.named_scope("qkv"):
                joined = batch["x"] @ kernels["qkv"]
            parts = jnp.split(joined, 3, axis=-1)
        else:
            parts = []
            for name in "qkv":
                with jax.named_scope(name):
                    parts.append(batch["x"] @ kernels[name])
        heads = 3 if fault == "heads" else 2
        q, k, v = (each.reshape(EXAMPLES, LENGTH, heads, -1) for each in parts)
        if fault == "exchanged":
            k, v = v, k
        scale = 1.0 if fault == "scale" else 1 / math.sqrt(FEATURES / heads)
        mask = batch["mask"] == (0 if fault == "mask" else 1)
        scores = jnp.where(mask[:, None, None, :], scale * jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
        shares = jax.nn.softmax(scores, axis=-2 if fault == "axis" else -1)
        read = jnp.einsum("bhqk,bkhd->bhqd", shares, v)
        x = (read if fault == "merged" else read.swapaxes(1, 2)).reshape(batch["x"].shape)
        with jax.named_scope("o"):
            x = x @ kernels["o"] * (1 + 0.1 * jnp.tanh(kernels["o"][0])[None, None] if fault == "other" else 1.0)
        return jnp.square(x).mean()

    qkv = {"qkv": jnp.concatenate([KERNELS[name] for name in "qkv"], axis=1), "o": KERNELS["o"]}
    return gs.capture(loss, qkv if packed else KERNELS, BATCH)


@pytest.mark.parametrize(
    ("fault", "own", "other"),
    [
        ("exchanged", "`k` as the key and `v` as the value", "`v` as the key and `k` as the value"),
        ("heads", "2 heads, scores times 0.58", "3 heads, scores times 0.71"),
        ("scale", "scores times 0.58", "scores times 1.0"),
        ("mask", "`mask` as the mask", "the inverse of `mask` as the mask"),
        ("axis", "a softmax over the keys", "a softmax over the queries"),
        ("merged", "heads transposed before they are merged", "heads merged without a transpose"),
    ],
)
def test_what_two_attentions_do_differently_is_told(fault: str, own: str, other: str) -> None:
    found = gs.compare(captured(), captured(fault))
    assert f", which reads an attention with {own}, and in the candidate with {other}." in found.sentence


def test_the_parts_of_a_packed_product_are_counted() -> None:
    found = gs.compare(captured(packed=True), captured("exchanged", packed=True))
    own = "the second third of `qkv` as the key and the last third of `qkv` as the value"
    assert f"which reads an attention with {own}, and in the candidate with " in found.sentence


@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_that_computes_something_else_of_one_attention_reads_the_same(packed: bool) -> None:
    found = gs.compare(captured(packed=packed), captured("other", packed=packed))
    assert found.verdict == "different"
    assert "attention" not in found.sentence


def inline(fault: str = "") -> gs.Dump:
    """Returns the dump of an attention whose queries, keys and values have kernels of their own and no entries."""

    def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
        with jax.named_scope("before"):
            x = jnp.tanh(batch["x"])
        with jax.named_scope("attention"):
            q, k, v = ((x @ kernels[name]).reshape(EXAMPLES, LENGTH, 2, -1) for name in "qkv")
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(FEATURES if fault == "scale" else FEATURES / 2)
            shares = jax.nn.softmax(scores, axis=-2 if fault == "axis" else -1)
            x = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ kernels["o"]
        return jnp.square(x).mean()

    return gs.capture(loss, KERNELS, {"x": BATCH["x"]})


def with_entries() -> gs.Dump:
    """Returns the dump of the same attention, whose packed product and last layer have entries."""

    def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
        with jax.named_scope("norm"):
            x = jnp.tanh(batch["x"])
        with jax.named_scope("qkv"):
            joined = x @ kernels["qkv"]
        q, k, v = (each.reshape(EXAMPLES, LENGTH, 2, -1) for each in jnp.split(joined, 3, axis=-1))
        x = jax.nn.dot_product_attention(q, k, v).reshape(x.shape)
        with jax.named_scope("proj"):
            x = x @ kernels["proj"]
        return jnp.square(x).mean()

    packed = {"qkv": jnp.concatenate([KERNELS[name] for name in "qkv"], axis=1), "proj": KERNELS["o"]}
    return gs.capture(loss, packed, {"x": BATCH["x"]})


@pytest.mark.parametrize(
    ("fault", "own", "other"),
    [
        ("scale", "scores times 0.58", "scores times 0.41"),
        ("axis", "a softmax over the keys", "a softmax over the queries"),
    ],
)
def test_a_packed_product_that_only_the_reference_has_an_entry_for_is_that_of_both(
    fault: str, own: str, other: str
) -> None:
    assert gs.compare(with_entries(), inline()).verdict == "same"
    found = gs.compare(with_entries(), inline(fault))
    assert f", which reads an attention with {own}, and in the candidate with {other}." in found.sentence
