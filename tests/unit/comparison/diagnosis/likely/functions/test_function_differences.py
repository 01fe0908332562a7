"""Functions of the same values are told apart: gates, conditions, interpolations, rotations, and means of segments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.data import drawn
from tests.support.sampled import sampled

_CONV = ("NHWC", "HWIO", "NHWC")


def _captured(loss: Callable[..., Any], weights: Any, batch: Any) -> gs.Dump:
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, batch, origins=False)


@cache
def _between(function: Callable[..., Any], *, scope: bool, features: int, image: bool = False) -> gs.Dump:
    """Returns the dump of a function of one layer, or of one and a condition, which another layer reads."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("first"):
            read = [batch["x"] @ weights["first"]]
        if "c" in batch:
            with jax.named_scope("condition"):
                read.append(batch["c"] @ weights["condition"])
        with jax.named_scope("step") if scope else nullcontext():
            x = function(*read)
        with jax.named_scope("last"):
            if image:
                x = jax.lax.conv_general_dilated(x, weights["kernel"], (1, 1), "SAME", dimension_numbers=_CONV)
            else:
                x = x @ weights["last"]
        return jnp.square(x).mean()

    weights = {"first": drawn(1, 5, 12) / 2, "last": drawn(2, features, 5), "condition": drawn(3, 4, 24) / 3}
    batch = {"x": drawn(4, 3, 6, 5)}
    if features == 12:
        batch["c"] = drawn(5, 3, 4)
    if image:
        weights["kernel"], batch = drawn(6, 3, 3, 12, 4), {"x": drawn(7, 2, 4, 5, 5)}
    return _captured(loss, weights, batch)


def _gated(act: Callable[[Any], Any], *, second: bool = False) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        one, other = jnp.split(x, 2, -1)
        return one * act(other) if second else act(one) * other

    return function


def _modulated(*, one: bool = True, shift_first: bool = False) -> Callable[..., Any]:
    def function(x: Any, condition: Any) -> Any:
        scale, shift = jnp.split(condition[:, None], 2, -1)
        scale, shift = (shift, scale) if shift_first else (scale, shift)
        return x * (float(one) + scale) + shift

    return function


def _gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


GATED = "the silu of the first half times the second"
MODULATED = "`first` times 1 + the first half of `condition` plus the second half of `condition`"


@pytest.mark.slow
@pytest.mark.parametrize("scope", [True, False])
@sampled(
    ("functions", "features", "words", "its"),
    [
        ((_gated(jax.nn.silu), _gated(_gelu)), 6, f"{GATED} of `first`",
         "the gelu by erf of the first half times the second"),
        ((_gated(jax.nn.silu), _gated(jax.nn.silu, second=True)), 6, f"{GATED} of `first`",
         "the first half times the silu of the second"),
        ((_modulated(), _modulated(one=False)), 12, MODULATED, MODULATED.replace("1 + ", "")),
        ((_modulated(), _modulated(shift_first=True)), 12, MODULATED,
         "`first` times 1 + the second half of `condition` plus the first half of `condition`"),
        ((lambda x, c: x * jax.nn.sigmoid(c[:, None, :12]), lambda x, c: x * c[:, None, :12]), 12,
         "`first` times the sigmoid of the first half of `condition`", "`first` times the first half of `condition`"),
        ((lambda x, c: x * jnp.sin(c[:, None, :12]), lambda x, c: x * c[:, None, :12]), 12, "", ""),
    ],
)  # fmt: skip
def test_functions_of_the_same_values_are_told_apart(
    functions: tuple[Any, Any], features: int, words: str, its: str, *, scope: bool
) -> None:
    reference, candidate = (_between(each, scope=scope, features=features) for each in functions)
    found = gs.compare(reference, candidate)
    first = found.first_divergence.forward
    assert first is not None
    assert first.name == ("step" if scope else "last")
    if not words:  # a sine is none of the functions
        assert " is " not in found.sentence
        assert "which reads" not in found.sentence
    elif scope:
        assert f"; it is {words} in the reference, and {its} in the candidate)" in found.sentence
    else:
        assert f", which reads {words}, and in the candidate {its}." in found.sentence


def _enlarged(method: str, *, corners: bool = False) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        shape = (x.shape[0], 2 * x.shape[1], 3 * x.shape[2], x.shape[3])
        if not corners:
            return jax.image.resize(x, shape, method)
        for axis in (1, 2):  # by the definition, and not by a matrix
            places = np.linspace(0, x.shape[axis] - 1, shape[axis]).astype(np.float32)
            before = np.minimum(places.astype(int), x.shape[axis] - 2)
            share = (places - before).reshape([-1 if each == axis else 1 for each in range(4)])
            x = jnp.take(x, before, axis) * (1 - share) + jnp.take(x, before + 1, axis) * share
        return x

    return function


CENTRES = "bilinear interpolation of pixel centres"


@pytest.mark.parametrize("scope", [True, False])
@sampled(
    ("own", "other", "words", "its"),
    [
        (_enlarged("nearest"), _enlarged("bilinear"), "nearest neighbours", CENTRES),
        (_enlarged("bilinear"), _enlarged("", corners=True), CENTRES, "bilinear interpolation of aligned corners"),
        (_enlarged("bilinear"), _enlarged("bicubic"), CENTRES, "bicubic interpolation of slope -0.5"),
    ],
)
def test_interpolations_are_told_apart(scope: bool, own: Any, other: Any, words: str, its: str) -> None:
    reference, candidate = (_between(each, scope=scope, features=0, image=True) for each in (own, other))
    sentence = gs.compare(reference, candidate).sentence
    if scope:
        assert f"; it is the {words} of `first` in the reference, and the {its} in the candidate)" in sentence
    else:
        assert f", which reads the {words} of `first`, and in the candidate the {its}." in sentence


@cache
def _rotated(base: float = 1e4, *, neighbours: bool = False, begin: int = 0, share: float = 1.0) -> gs.Dump:
    width, length, heads = 8, 6, 2

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("query"):
            x = (x @ weights).reshape(3, length, heads, width).swapaxes(1, 2)
        with jax.named_scope("rotary"):
            turned = round(width * share)
            angles = (np.arange(length) + begin)[:, None] * base ** (-np.arange(0, turned, 2) / turned)
            turns = np.exp(1j * angles).astype(np.complex64)
            part, rest = x[..., :turned], x[..., turned:]
            if neighbours:
                made = jax.lax.complex(part[..., ::2], part[..., 1::2]) * turns
                part = jnp.stack([made.real, made.imag], -1).reshape(part.shape)
            else:
                made = jax.lax.complex(part[..., : turned // 2], part[..., turned // 2 :]) * turns
                part = jnp.concatenate([made.real, made.imag], -1)
            x = jnp.concatenate([part, rest], -1)
        return jnp.square(jnp.sin(x)).mean()

    return _captured(loss, drawn(1, 5, heads * width), drawn(2, 3, length, 5))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"base": 500.0}, "halves and base 5.0e2"),
        ({"base": 32.0}, "halves and base 3.2e1"),
        ({"neighbours": True}, "neighbours and base 1.0e4"),
        ({"begin": 1}, "halves and base 1.0e4, the first position 1"),
        ({"share": 0.5}, "halves and base 1.0e4, of half of the features"),
    ],
)
def test_rotary_positions_are_told_apart(fault: dict[str, Any], words: str) -> None:
    sentence = gs.compare(_rotated(), _rotated(**fault)).sentence
    told = (
        f"it rotates `query` by rotary positions of {words}, and the reference by rotary positions of halves and base"
    )
    assert told in sentence


@cache
def _of_segments(how: str) -> gs.Dump:
    source, target = np.array([0, 1, 2, 3, 4, 5, 0, 2, 4]), np.array([1, 2, 3, 4, 5, 0, 3, 5, 1])

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("message"):
            x = jnp.tanh(x @ weights)
        with jax.named_scope("aggregate"):
            x = (jax.ops.segment_max if how == "max" else jax.ops.segment_sum)(x[source], target, 6)
            x = x / np.bincount(target)[:, None].astype(np.float32) if how == "mean" else x
        return jnp.square(x).mean()

    return _captured(loss, drawn(1, 5, 4), drawn(2, 6, 5))


def test_means_of_segments_are_told_from_sums() -> None:
    one, other = _of_segments("sum"), _of_segments("mean")
    assert "it is the reference's, of which rows are divided by 1 to 2" in gs.compare(one, other).sentence
    assert "it is the reference's, of which rows are multiplied by 1 to 2" in gs.compare(other, one).sentence
    assert "of which rows" not in gs.compare(one, _of_segments("max")).sentence


@cache
def _excited(gate: Callable[[Any], Any], *, of_port: bool, flat: bool = False) -> gs.Dump:
    """An image of which each channel is multiplied by a gate, for which no program has a scope."""
    order = _CONV if of_port else ("NCHW", "OIHW", "NCHW")
    space = (1, 2) if of_port else (2, 3)
    names = ("Conv_0", "Dense_0", "Conv_1") if of_port else ("conv1", "excite", "conv2")

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope(names[0]):
            x = jax.lax.conv_general_dilated(x, weights[names[0]], (1, 1), "SAME", dimension_numbers=order)
        squeezed = x.mean(space)
        with jax.named_scope(names[1]):
            y = squeezed @ weights[names[1]]
            y = y if flat else jnp.expand_dims(y, space)
        y = jnp.expand_dims(gate(y), space) if flat else gate(y)
        x = jax.nn.relu(x) * y
        with jax.named_scope(names[2]):
            x = jax.lax.conv_general_dilated(x, weights[names[2]], (1, 1), "SAME", dimension_numbers=order)
        return jnp.square(x).mean()

    kernels = {names[0]: drawn(1, 3, 3, 3, 6), names[2]: drawn(2, 3, 3, 6, 4) / 4}
    kernels = {name: each if of_port else each.transpose(3, 2, 0, 1) for name, each in kernels.items()}
    image = drawn(4, 4, 5, 5, 3)
    return _captured(loss, {**kernels, names[1]: drawn(3, 6, 6)}, image if of_port else image.transpose(0, 3, 1, 2))


@pytest.mark.slow
@sampled("flat", [False, True])
@pytest.mark.parametrize(
    ("gate", "words"), [(jax.nn.hard_sigmoid, "the hard_sigmoid of `excite`"), (jnp.tanh, "the tanh of `excite`")]
)
def test_the_gate_of_whole_channels_is_told_that_no_program_has_a_scope_for(
    gate: Callable[[Any], Any], words: str, *, flat: bool
) -> None:
    reference = _excited(jax.nn.sigmoid, of_port=False, flat=flat)
    assert gs.compare(reference, _excited(jax.nn.sigmoid, of_port=True, flat=flat)).verdict == "same"
    sentence = gs.compare(reference, _excited(gate, of_port=True, flat=flat)).sentence
    assert sentence.startswith("Forward first differs at `conv2` ("), sentence
    assert f"the sigmoid of `excite`, and in the candidate the relu of `conv1` times {words}." in sentence or (
        f"and in the candidate {words} times the relu of `conv1`." in sentence
    ), sentence
