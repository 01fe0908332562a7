"""Images as high as they have channels are compared in the layout of the program, where a value differs in any."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(29).normal
SIZE = 5
KERNELS = [(_draw(size=(SIZE, SIZE, 3, 3)) / 6).astype(np.float32) for _ in range(2)]
IMAGES = _draw(size=(SIZE, SIZE, SIZE, SIZE)).astype(np.float32)


@cache
def _dump(
    names: tuple[str, str], *, channels_last: bool, padding: tuple[int, int] = (1, 1), scale: float = 1.0
) -> Dump:
    numbers = ("NHWC", "HWIO", "NHWC") if channels_last else ("NCHW", "OIHW", "NCHW")

    def loss(weights: Any, batch: Any) -> Any:
        x = scale * next(iter(batch.values()))
        for name, pads in zip(names, ((1, 1), padding), strict=True):
            with jax.named_scope(name):
                x = lax.conv_general_dilated(x, weights[name], (1, 1), [pads] * 2, dimension_numbers=numbers)
            x = jax.nn.elu(x)
        return (x**2).mean()

    kernels = [each.transpose(2, 3, 1, 0) if channels_last else each for each in KERNELS]
    images = IMAGES.transpose(0, 2, 3, 1) if channels_last else IMAGES
    return gs.capture(loss, dict(zip(names, kernels, strict=True)), {f"of_{names[0]}": images}, origins=False)


@pytest.mark.slow
@sampled("channels_last", [False, True])
def test_a_value_that_differs_is_compared_in_the_layout_of_the_program(channels_last: bool) -> None:
    reference = _dump(("conv1", "conv2"), channels_last=not channels_last)
    candidate = _dump(("down", "up"), channels_last=channels_last, padding=(2, 0))
    found = gs.compare(reference, candidate)
    first = found.first_divergence.forward
    assert first is not None
    assert first.name == "conv2"
    one, other = reference["activation/conv2"], candidate["activation/up"]
    expected = other.transpose(0, 2, 3, 1) if not channels_last else other.transpose(0, 3, 1, 2)
    error = np.linalg.norm(expected - one) / np.linalg.norm(one)
    assert first.metrics["rel_l2"] == pytest.approx(error, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("channels_last", [False, True])
def test_so_are_the_gradients_of_values_that_all_differ(channels_last: bool) -> None:
    reference = _dump(("conv1", "conv2"), channels_last=not channels_last)
    candidate = _dump(("down", "up"), channels_last=channels_last, scale=2.0)
    rows = {row.name: row for row in gs.compare(reference, candidate).rows if row.family == "activation_grad"}
    for name, counterpart in (("conv1", "down"), ("conv2", "up")):
        one, other = reference[f"activation_grad/{name}"], candidate[f"activation_grad/{counterpart}"]
        expected = other.transpose(0, 2, 3, 1) if not channels_last else other.transpose(0, 3, 1, 2)
        error = np.linalg.norm(expected - one) / np.linalg.norm(one)
        assert rows[name].metrics["rel_l2"] == pytest.approx(error, rel=1e-4)


@cache
def _mixing(*, channels_last: bool, bias: float = 0.5) -> Dump:
    """Two convolutions with a dense layer between, which has its channels last in both programs."""
    numbers = ("NHWC", "HWIO", "NHWC") if channels_last else ("NCHW", "OIHW", "NCHW")
    mix = (np.random.default_rng(7).normal(size=(SIZE, SIZE)) / 2).astype(np.float32)

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in ("conv1", "conv2"):
            with jax.named_scope(name):
                x = lax.conv_general_dilated(x, weights[name], (1, 1), [(1, 1)] * 2, dimension_numbers=numbers)
            x = jax.nn.elu(x)
            if name == "conv1":
                with jax.named_scope("mix"):
                    inner = (x if channels_last else x.transpose(0, 2, 3, 1)) @ weights["mix"] + bias
                x = jax.numpy.tanh(inner if channels_last else inner.transpose(0, 3, 1, 2))
        return (x**2).mean()

    kernels = [each.transpose(2, 3, 1, 0) if channels_last else each for each in KERNELS]
    images = IMAGES.transpose(0, 2, 3, 1) if channels_last else IMAGES
    weights = {**dict(zip(("conv1", "conv2"), kernels, strict=True)), "mix": mix}
    return gs.capture(loss, weights, {"x": images}, origins=False)


def test_a_layer_with_another_order_of_axes_than_the_others_is_compared_as_it_is_where_that_is_nearer() -> None:
    reference = _mixing(channels_last=False)
    assert gs.compare(reference, _mixing(channels_last=True)).verdict == "same"
    candidate = _mixing(channels_last=True, bias=0.0)
    first = gs.compare(reference, candidate).first_divergence.forward
    assert first is not None
    assert first.name == "mix"
    one, other = reference["activation/mix"], candidate["activation/mix"]
    assert first.metrics["rel_l2"] == pytest.approx(np.linalg.norm(other - one) / np.linalg.norm(one), rel=1e-4)


@cache
def _along_time(*, channels_last: bool, padding: tuple[int, int] = (1, 1)) -> Dump:
    """Two convolutions along time between dense layers, which have their channels last in both programs."""
    draw = np.random.default_rng(5).normal
    steps, width = 7, 4
    numbers = ("NWC", "WIO", "NWC") if channels_last else ("NCW", "OIW", "NCW")
    shapes = {"d1": (width, width), "d2": (width, width), "c1": (6, width, 3), "c2": (width, 6, 3)}
    shapes |= {"d3": (width, width), "d4": (width, width)}
    weights = {name: (draw(size=shape) / 3).astype(np.float32) for name, shape in shapes.items()}
    scopes = {name: f"{name}.{'linear' if channels_last else 'dense'}" for name in weights}

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in ("d1", "d2"):
            with jax.named_scope(scopes[name]):
                x = x @ weights[name]
        residual, x = x, (x if channels_last else x.swapaxes(1, 2))
        for name, pads in (("c1", (1, 1)), ("c2", padding)):
            with jax.named_scope(scopes[name]):
                x = lax.conv_general_dilated(x, weights[name], (1,), [pads], dimension_numbers=numbers)
        x = 4 * residual + jax.nn.relu(x if channels_last else x.swapaxes(1, 2))
        for name in ("d3", "d4"):
            with jax.named_scope(scopes[name]):
                x = x @ weights[name]
        return (x**2).mean()

    kernels = {name: each.T if channels_last and each.ndim > 2 else each for name, each in weights.items()}
    inputs = draw(size=(3, steps, width)).astype(np.float32)
    return gs.capture(loss, kernels, {"x": inputs}, origins=False)


def test_a_convolution_along_time_is_compared_in_the_layout_of_the_others_not_in_that_of_most_layers() -> None:
    reference = _along_time(channels_last=False)
    assert gs.compare(reference, _along_time(channels_last=True)).verdict == "same"
    found = gs.compare(reference, _along_time(channels_last=True, padding=(2, 0)))
    first = found.first_divergence.forward
    assert first is not None
    assert first.name == "c2.dense"
    assert "rel_l2" in first.metrics
    assert "pads the beginnings of the axes [2] by [2], and the reference by [1]" in found.sentence


@pytest.mark.slow
def test_kernels_show_the_order_of_axes_where_nothing_that_is_computed_agrees() -> None:
    """The first convolution is padded otherwise, and both programs take the image with its channels last."""
    draw = np.random.default_rng(7).normal
    kernel, head = draw(size=(3, 3, 3, 8)).astype(np.float32) / 5, draw(size=(8, 2)).astype(np.float32)
    image = draw(size=(4, 12, 12, 3)).astype(np.float32)

    def loss(weights: Any, batch: Any, *, channels_first: bool) -> Any:
        order = ("NCHW", "OIHW", "NCHW") if channels_first else ("NHWC", "HWIO", "NHWC")
        x = batch["x"].transpose(0, 3, 1, 2) if channels_first else batch["x"]
        padding = [(1, 1)] * 2 if channels_first else "SAME"
        with jax.named_scope("conv"):
            x = lax.conv_general_dilated(x, weights["conv"]["kernel"], (2, 2), padding, dimension_numbers=order)
        with jax.named_scope("head"):
            x = jnp.tanh(x).mean((2, 3) if channels_first else (1, 2)) @ weights["head"]["kernel"]
        return jnp.square(x).mean()

    def captured(kernel: Any, *, channels_first: bool) -> gs.Dump:
        weights = {"conv": {"kernel": kernel}, "head": {"kernel": head}}
        return gs.capture(partial(loss, channels_first=channels_first), weights, {"x": image}, origins=False)

    port = captured(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)), channels_first=True)
    found = gs.compare(captured(kernel, channels_first=False), port)
    assert found.sentence.startswith("Forward first differs at `conv` (rel_l2 "), found.sentence
    assert "it pads the beginnings of the axes [1, 2] by [1, 1], and the reference by [0, 0]" in found.sentence
