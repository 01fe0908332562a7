"""An attention without an entry of its own is told where a dense layer behind it shows what it is in both programs."""

from __future__ import annotations

import contextlib
import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.comparison.diagnosis.suspects.reading.attentions import reading_layers
from tests.support.data import drawn
from tests.support.sampled import sampled

EXAMPLES, LENGTH, FEATURES = 2, 4, 6
KERNELS = {name: drawn(number, FEATURES, FEATURES) for number, name in enumerate("qkvo")}
BATCH = {"x": drawn(9, EXAMPLES, LENGTH, FEATURES), "mask": jnp.array([[1, 1, 1, 0], [1, 1, 0, 0]])}


@cache
def captured(fault: str = "", *, packed: bool = False, scope: str = "") -> gs.Dump:
    """Returns the dump of an attention with two heads and a mask, whose layers have entries alone, or a step, too."""

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
        if fault == "dealt":
            q, k, v = (each.reshape(EXAMPLES, LENGTH, -1, heads).swapaxes(2, 3) for each in parts)
        if fault == "each head":
            q, k, v = jnp.split(jnp.concatenate(parts, -1).reshape(EXAMPLES, LENGTH, heads, -1), 3, axis=-1)
        if fault == "exchanged":
            k, v = v, k
        scale = math.sqrt(FEATURES / heads) ** {"scale": 0, "times": 1}.get(fault, -1)
        scale *= {"warm": 0.4, "cold": 3.7}.get(fault, 1.0)
        mask = batch["mask"] == (0 if fault == "mask" else 1)
        scores = jnp.where(mask[:, None, None, :], scale * jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
        if fault == "behind":
            scores = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k)
        with jax.named_scope(scope) if scope == "weights" else contextlib.nullcontext():
            shares = jax.nn.softmax(scores, axis=-2 if fault == "axis" else -1)
        if fault == "behind":
            shares = jnp.where(mask[:, None, None, :], shares, 0)
        with jax.named_scope(scope) if scope == "read" else contextlib.nullcontext():
            read = jnp.einsum("bhqk,bkhd->bhqd", shares, v)
        if fault == "added":
            read = read + 0.1 * v.swapaxes(1, 2)
        x = (read if fault == "merged" else read.swapaxes(1, 2)).reshape(batch["x"].shape)
        with jax.named_scope("o"):
            x = x @ kernels["o"] * (1 + 0.1 * jnp.tanh(kernels["o"][0])[None, None] if fault == "other" else 1.0)
        return jnp.square(x).mean()

    qkv = {"qkv": jnp.concatenate([KERNELS[name] for name in "qkv"], axis=1), "o": KERNELS["o"]}
    return gs.capture(loss, qkv if packed else KERNELS, BATCH)


@pytest.mark.slow
@sampled(
    ("fault", "own", "other"),
    [
        ("exchanged", "`k` as the key and `v` as the value", "`v` as the key and `k` as the value"),
        ("heads", "2 heads, scores times 0.58", "3 heads, scores times 0.71"),
        ("scale", "scores times 0.58", "scores times 1.0"),
        ("times", "scores times 0.58", "scores times 1.7"),
        ("mask", "`mask` as the mask", "the inverse of `mask` as the mask"),
        ("axis", "a softmax over the keys", "a softmax over the queries"),
        ("behind", "its mask before the softmax", "its mask behind the softmax"),
        ("merged", "heads merged side by side", "heads merged without a transpose"),
        ("dealt", "the features of each head side by side", "features dealt out to the heads in turn"),
    ],
)
def test_what_two_attentions_do_differently_is_told(fault: str, own: str, other: str) -> None:
    found = gs.compare(captured(), captured(fault))
    assert f", which reads an attention with {own}, and in the candidate with {other}." in found.sentence


@pytest.mark.parametrize(("fault", "scale"), [("warm", "0.23"), ("cold", "2.1")])
def test_scores_may_be_multiplied_by_any_number(fault: str, scale: str) -> None:
    for pair, numbers in (
        ((captured(), captured(fault)), ("0.58", scale)),
        ((captured(fault), captured()), (scale, "0.58")),
    ):
        own, other = (f"scores times {each}" for each in numbers)
        found = gs.compare(*pair).sentence
        assert f", which reads an attention with {own}, and in the candidate with {other}." in found, found


def test_a_step_that_one_program_alone_has_an_entry_for_may_be_between() -> None:
    found = gs.compare(captured(scope="weights"), captured("mask", scope="read"))
    told = "`mask` as the mask, and in the candidate with the inverse of `mask` as the mask."
    assert f", which reads an attention with {told}" in found.sentence


@pytest.mark.slow
def test_a_packed_product_may_have_query_key_and_value_of_each_head() -> None:
    found = gs.compare(captured(packed=True), captured("each head", packed=True))
    own, other = (f"query, key and value packed for {heads}" for heads in ("all heads", "each head"))
    assert f"which reads an attention with {own}, and in the candidate with {other}." in found.sentence


@pytest.mark.slow
def test_the_parts_of_a_packed_product_are_counted() -> None:
    found = gs.compare(captured(packed=True), captured("exchanged", packed=True))
    own = "the second third of `qkv` as the key and the last third of `qkv` as the value"
    assert f"which reads an attention with {own}, and in the candidate with " in found.sentence


def test_few_attentions_are_computed_of_all_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what an attention may be is refuted by a few positions and features."""
    ref, cand = captured(), captured("added")
    whole: list[Any] = []
    makes = reading_layers.ReadingLayer._makes

    def counted(layer: Any, attention: Any, queries: Any) -> bool:
        whole.extend([attention] if queries is None else [])
        return makes(layer, attention, queries)

    monkeypatch.setattr(reading_layers.ReadingLayer, "_makes", counted)
    found = gs.compare(ref, cand)
    assert found.verdict == "different"
    assert "attention with" not in found.sentence
    assert 0 < len(whole) < 5


@pytest.mark.slow
@sampled("fault", ["", "no bias", "scale"])
def test_a_position_bias_that_one_program_alone_has_a_name_for_is_no_fault(fault: str) -> None:
    def dump(*, of_port: bool, fault: str = "") -> gs.Dump:
        def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
            with jax.named_scope("table"):
                table = kernels["table"][jnp.abs(jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)[None])]
            with jax.named_scope("biases") if not of_port else contextlib.nullcontext():
                bias = table.transpose(2, 0, 1)[None] * 1.0
            parts = []
            for name in "qkv":
                with jax.named_scope(f"Dense_{name}" if of_port else name):
                    parts.append((batch["x"] @ kernels[name]).reshape(EXAMPLES, LENGTH, 2, -1))
            q, k, v = parts
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (1 / math.sqrt(3) if fault == "scale" else 1.0)
            shares = jax.nn.softmax(scores + jnp.broadcast_to(bias * float(fault != "no bias"), scores.shape))
            x = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(batch["x"].shape)
            with jax.named_scope("Dense_o" if of_port else "o"):
                x = x @ kernels["o"]
            return jnp.square(x).mean()

        return gs.capture(loss, KERNELS | {"table": drawn(5, LENGTH, 2)}, BATCH, origins=False)

    found = gs.compare(dump(of_port=False), dump(of_port=True, fault=fault))
    assert bool(found) is (not fault), found.sentence
    if fault == "no bias":
        words = "an attention with `biases` as the position bias, and in the candidate with no position bias"
        assert "first differs at `o` (" in found.sentence
        assert f", which reads {words}." in found.sentence
    elif fault:
        assert ", which reads an attention with scores times 1.0, and in the candidate with scores times 0.58." in (
            found.sentence
        )


@pytest.mark.slow
@sampled("packed", [False, True])
def test_a_layer_that_computes_something_else_of_one_attention_reads_the_same(packed: bool) -> None:
    found = gs.compare(captured(packed=packed), captured("other", packed=packed))
    assert found.verdict == "different"
    assert "attention" not in found.sentence


@cache
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


@cache
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


@pytest.mark.slow
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


@cache
def with_bias(fault: str = "") -> gs.Dump:
    """Returns the dump of an attention of two heads with a position bias."""

    def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
        parts = []
        for name in "qkv":
            with jax.named_scope(name):
                parts.append((batch["x"] @ kernels[name]).reshape(EXAMPLES, LENGTH, 2, -1))
        with jax.named_scope("bias"):
            bias = jnp.tanh(kernels["bias"])
        bias = bias.swapaxes(0, 1) if fault == "transposed" else bias
        bias = 0 * bias if fault == "none" else bias
        scores = jnp.einsum("bqhd,bkhd->bhqk", *parts[:2]) + bias.transpose(2, 0, 1)[None]
        x = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), parts[2]).reshape(batch["x"].shape)
        with jax.named_scope("o"):
            x = x @ kernels["o"]
        return jnp.square(x).mean()

    return gs.capture(loss, {**KERNELS, "bias": drawn(7, LENGTH, LENGTH, 2)}, {"x": BATCH["x"]})


@sampled(
    ("fault", "other"),
    [("transposed", "`bias` transposed as the position bias"), ("none", "no position bias")],
)
def test_what_is_added_to_the_scores_is_told(fault: str, other: str) -> None:
    assert gs.compare(with_bias(), with_bias()).verdict == "same"
    found = gs.compare(with_bias(), with_bias(fault))
    attentions = f"an attention with `bias` as the position bias, and in the candidate with {other}."
    assert f"which reads {attentions}" in found.sentence


@cache
def of_image(scale: float, *, channels_first: bool) -> gs.Dump:
    """Returns the dump of an attention of the pixels of images, packed by a convolution with a window of one."""
    order = ("NCHW", "OIHW", "NCHW") if channels_first else ("NHWC", "HWIO", "NHWC")

    def kernel(number: int, features: int) -> Any:
        drawn_kernel = drawn(number, features, FEATURES, 1, 1)
        return drawn_kernel if channels_first else drawn_kernel.transpose(2, 3, 1, 0)

    def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
        x = batch["x"] if channels_first else batch["x"].transpose(0, 2, 3, 1)
        with jax.named_scope("qkv"):
            x = jax.lax.conv_general_dilated(x, kernels["qkv"], (1, 1), "SAME", dimension_numbers=order)
        pixels = (x if channels_first else x.transpose(0, 3, 1, 2)).reshape(EXAMPLES, 3, FEATURES, -1)
        q, k, v = (pixels[:, at] for at in range(3))
        shares = jax.nn.softmax(scale * jnp.einsum("ncq,nck->nqk", q, k))
        x = jnp.einsum("nqk,nck->ncq", shares, v).reshape(EXAMPLES, FEATURES, 2, 3)
        x = x if channels_first else x.transpose(0, 2, 3, 1)
        with jax.named_scope("proj"):
            x = jax.lax.conv_general_dilated(x, kernels["proj"], (1, 1), "SAME", dimension_numbers=order)
        return jnp.square(x).mean()

    kernels = {"qkv": kernel(1, 3 * FEATURES), "proj": kernel(2, FEATURES)}
    return gs.capture(loss, kernels, {"x": drawn(3, EXAMPLES, FEATURES, 2, 3)})


@pytest.mark.slow
@sampled("channels_first", [True, False])
def test_the_positions_of_an_attention_may_be_pixels(channels_first: bool) -> None:
    reference = of_image(1 / math.sqrt(FEATURES), channels_first=channels_first)
    assert gs.compare(reference, of_image(1 / math.sqrt(FEATURES), channels_first=not channels_first)).verdict == "same"
    found = gs.compare(reference, of_image(1.0, channels_first=not channels_first))
    attentions = "an attention with scores times 0.41, and in the candidate with scores times 1.0."
    assert f"which reads {attentions}" in found.sentence


@cache
def of_another_sequence(fault: str = "") -> gs.Dump:
    """Returns the dump of an attention of queries to the keys and values of a longer, masked sequence."""
    keys = LENGTH + 3
    mask = jnp.arange(keys)[None] < jnp.array([[keys], [5]])

    def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
        parts = []
        for name in "qkv":
            with jax.named_scope(name):
                x = batch["x" if name == "q" else "memory"] @ kernels[name]
                parts.append(x.reshape(*x.shape[:2], 2, -1))
        query, key, value = parts if fault != "exchanged" else (parts[0], parts[2], parts[1])
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(FEATURES / 2)
        kept = batch["mask"][:, None, None]
        scores = scores if fault == "mask" else jnp.where(kept, scores, -1e9)
        x = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value).reshape(batch["x"].shape)
        with jax.named_scope("o"):
            x = x @ kernels["o"]
        return jnp.square(x).mean()

    memory = drawn(11, EXAMPLES, keys, FEATURES)
    return gs.capture(loss, KERNELS, {"x": BATCH["x"], "memory": memory, "mask": mask}, origins=False)


@pytest.mark.parametrize(
    ("fault", "own", "other"),
    [
        ("mask", "`mask` as the mask", "no mask"),
        ("exchanged", "`k` as the key and `v` as the value", "`v` as the key and `k` as the value"),
    ],
)
def test_keys_may_be_of_another_sequence_than_queries(fault: str, own: str, other: str) -> None:
    found = gs.compare(of_another_sequence(), of_another_sequence(fault))
    assert f", which reads an attention with {own}, and in the candidate with {other}." in found.sentence
