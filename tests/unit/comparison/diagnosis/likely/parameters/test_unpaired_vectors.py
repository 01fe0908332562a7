"""A bias or a scale that the layer of one program has alone is named, whatever both layers read."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(41).normal
UNITS = 6
PARAMS = {
    "conv": {"kernel": _draw(size=(3, 3, 3, UNITS)), "bias": _draw(size=UNITS)},
    "norm": {"scale": 1 + _draw(size=UNITS) / 3, "bias": _draw(size=UNITS)},
    "dense": {"kernel": _draw(size=(UNITS, UNITS)), "bias": _draw(size=UNITS)},
}
IMAGES = _draw(size=(3, 4, 4, 3))


def _like(value: Any, vector: Any) -> Any:
    return jax.numpy.broadcast_to(jax.numpy.asarray(vector, value.dtype), value.shape)


@cache
def _without(missing: str = "", narrow: bool = False) -> Dump:
    """The dump of a network that lacks a parameter; the mean that its dense layer reads is no layer."""
    dtype = jax.numpy.bfloat16 if narrow else np.float32
    params = {
        layer: {name: jax.numpy.asarray(each, dtype) for name, each in own.items() if f"{layer}/{name}" != missing}
        for layer, own in PARAMS.items()
    }

    def loss(weights: Any, batch: Any) -> Any:
        conv, norm, dense = (weights[name] for name in PARAMS)
        with jax.named_scope("conv"):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(batch["x"], conv["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
            x = x + _like(x, conv.get("bias", 0))
        with jax.named_scope("norm"):
            x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
            x = x * _like(x, norm.get("scale", 1)) + _like(x, norm.get("bias", 0))
        x = jax.nn.relu(x).mean((1, 2))
        with jax.named_scope("dense"):
            x = x @ dense["kernel"]
            x = x + _like(x, dense.get("bias", 0))
        return (x**2).mean()

    return gs.capture(loss, params, {"x": jax.numpy.asarray(IMAGES, dtype)}, origins=False)


@pytest.mark.slow
@sampled(
    ("missing", "less", "more"),
    [
        ("conv/bias", "adds no bias, and the reference `conv/bias`", "adds `conv/bias`, and the reference no bias"),
        (
            "norm/bias",
            "does not add `norm/bias`, and the reference does",
            "adds `norm/bias`, and the reference does not",
        ),
        (
            "norm/scale",
            "does not multiply by `norm/scale`, and the reference does",
            "multiplies by `norm/scale`, and the reference does not",
        ),
        (
            "dense/bias",
            "does not add `dense/bias`, and the reference does",
            "adds `dense/bias`, and the reference does not",
        ),
    ],
)
def test_a_vector_of_one_program_alone_is_named(missing: str, less: str, more: str) -> None:
    whole, other = _without(), _without(missing)
    layer = missing.partition("/")[0]
    for found, words in ((gs.compare(whole, other), less), (gs.compare(other, whole), more)):
        assert found.sentence.startswith(f"Forward first differs at `{layer}` (rel_l2 "), found.sentence
        assert f"made here; it {words})" in found.sentence, found.sentence


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("channels", [1, -1])
def test_a_scale_of_one_term_of_a_sum_is_named(channels: int, ignored: bool) -> None:
    def residual(*, scaled: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("stem"):
                x = jax.numpy.moveaxis(batch["x"] @ weights["stem"], -1, channels)
            with jax.named_scope("block"):
                with jax.named_scope("dense"):
                    inner = jax.numpy.moveaxis(x, channels, -1) @ weights["dense"]["kernel"]
                inner = inner * _like(inner, weights["gamma"]) if scaled else inner
                x = x + jax.numpy.moveaxis(inner, -1, channels)
            return (jax.numpy.tanh(x) ** 2).mean()

        gamma = {"gamma": PARAMS["norm"]["scale"]} if scaled or ignored else {}
        own = {"stem": PARAMS["dense"]["kernel"][:3], "dense": {"kernel": PARAMS["dense"]["kernel"]}, **gamma}
        return gs.capture(loss, own, {"x": IMAGES.astype(np.float32)}, origins=False)

    sentence = gs.compare(residual(scaled=True), residual(scaled=False)).sentence
    assert sentence.startswith("Forward first differs at `block` (rel_l2 "), sentence
    assert "it does not multiply `block/dense` by `gamma`, and the reference does)" in sentence, sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("conv/bias", "it adds no bias, and the reference `conv/bias`)"),
        ("norm/bias", "it does not add `norm/bias`, and the reference does)"),
        ("dense/bias", "it does not add `dense/bias`, and the reference does)"),
    ],
)
def test_a_bias_in_bfloat16_is_named(missing: str, words: str) -> None:
    sentence = gs.compare(_without(narrow=True), _without(missing, narrow=True)).sentence
    assert words in sentence, sentence


@pytest.mark.slow
def test_a_vector_of_one_program_that_does_not_make_the_difference_is_not_named() -> None:
    def shifted(shift: float) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("dense"):
                x = batch["x"].mean((1, 2)) @ weights["dense"]["kernel"][:3]
                x = x + _like(x, weights["dense"].get("bias", 0))
                return (jax.numpy.tanh(x + shift * x**2) ** 2).mean()

        own = {"dense": PARAMS["dense"]} if not shift else {"dense": {"kernel": PARAMS["dense"]["kernel"]}}
        return gs.capture(loss, own, {"x": IMAGES.astype(np.float32)}, origins=False)

    sentence = gs.compare(shifted(0.0), shifted(0.1)).sentence
    assert "Forward" in sentence
    assert "does not add" not in sentence, sentence
