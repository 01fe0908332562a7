"""An image whose channels a port reads in another order is told, as BGR for RGB."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn
from tests.support.sampled import sampled

WEIGHTS = {"stem": drawn(1, 3, 3, 3, 6), "head": drawn(2, 6, 4)}
IMAGES = drawn(3, 4, 8, 8, 3)


@cache
def _captured(*, of_port: bool, fault: str = "", first: bool = False, channels: int = 3) -> Dump:
    """A convolution of an image, whose channels may be few, and come first."""
    names = ("Conv_0", "Dense_0") if of_port else ("stem", "head")
    layouts = ("NCHW", "OIHW", "NCHW") if first else ("NHWC", "HWIO", "NHWC")

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        x = {"reversed": x[..., ::-1], "mirrored": x[:, :, ::-1], "columns": x.swapaxes(1, 2), "sine": jnp.sin(x)}.get(
            fault, x
        )
        with jax.named_scope(names[0]):
            x = jax.lax.conv_general_dilated(x, weights[names[0]], (2, 2), [(1, 1)] * 2, dimension_numbers=layouts)
            x = 1.5 * x if fault == "factor" else x
        with jax.named_scope(names[1]):
            return jnp.square(jnp.tanh(x).mean((2, 3) if first else (1, 2)) @ weights[names[1]]).mean()

    weights = dict(zip(names, WEIGHTS.values(), strict=True))
    kernel, images = weights[names[0]][:, :, :channels], IMAGES[..., :channels]
    if first:
        kernel, images = kernel.transpose(3, 2, 0, 1), images.transpose(0, 3, 1, 2)
    return gs.capture(loss, {**weights, names[0]: kernel}, {"x": images}, origins=False)


@pytest.mark.slow
@sampled(("fault", "axis"), [("reversed", 3), ("mirrored", 2)])
def test_the_axis_is_told_along_which_a_port_reads_an_image_in_reverse(fault: str, axis: int) -> None:
    found = gs.compare(_captured(of_port=False), _captured(of_port=True, fault=fault))
    told = f", which reads `x`, and in the candidate `x` in reverse along the axis {axis}."
    assert found.sentence.startswith("Forward first differs at `stem` (rel_l2 "), found.sentence
    assert told in found.sentence, found.sentence
    found = gs.compare(_captured(of_port=False, fault=fault), _captured(of_port=True))
    assert f", which reads `x` in reverse along the axis {axis}, and in the candidate `x`." in found.sentence


def test_axes_are_told_that_a_port_reads_in_the_place_of_each_other() -> None:
    found = gs.compare(_captured(of_port=False), _captured(of_port=True, fault="columns"))
    assert ", which reads `x`, and in the candidate `x` with its axes [1, 2] exchanged." in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 1])
def test_it_is_said_whose_axis_it_is_where_the_programs_have_others(channels: int) -> None:
    reference = _captured(of_port=False, first=True, channels=channels)
    found = gs.compare(reference, _captured(of_port=True, fault="mirrored", channels=channels))
    assert ", and in the candidate `x` in reverse along the axis 3 of the reference." in found.sentence, found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["sine", "factor"])
def test_no_axis_is_told_of_another_fault(fault: str) -> None:
    found = gs.compare(_captured(of_port=False), _captured(of_port=True, fault=fault))
    assert found.verdict == "different"
    assert "in reverse" not in found.sentence, found.sentence
