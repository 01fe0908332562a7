"""Convolutions along time have their channels last in one program and before the steps in the other."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

CHANNELS, STEPS = 6, 12


@cache
def _dump(*, channels_last: bool, causal: bool = True, width: int = 2, factor: float = 1.0) -> Dump:
    """The dump of an embedding and two convolutions along time, of which the first one looks back or ahead."""
    numbers = ("NWC", "WIO", "NWC") if channels_last else ("NCW", "OIW", "NCW")
    kernels = {name: drawn(seed, width, CHANNELS, CHANNELS) for seed, name in enumerate(("first", "last"))}
    weights = {name: {"kernel": each if channels_last else each.transpose(2, 1, 0)} for name, each in kernels.items()}
    weights["embed"] = {"kernel": drawn(5, 9, CHANNELS)}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("embed"):
            x = weights["embed"]["kernel"][batch]
        x = x if channels_last else x.swapaxes(1, 2)
        for name in ("first", "last"):
            with jax.named_scope(name):
                padding = (width - 1, 0) if causal else (0, width - 1)
                x = jax.lax.conv_general_dilated(
                    x, weights[name]["kernel"], (1,), (padding,), dimension_numbers=numbers
                )
            x = jnp.tanh(x * factor)
        return jnp.square(x.mean(1 if channels_last else 2)).sum()

    return gs.capture(loss, weights, (jnp.arange(3 * STEPS) % 7).reshape(3, STEPS), origins=False)


@pytest.mark.slow
def test_the_axes_of_sequences_follow_from_kernels_where_no_convolution_agrees() -> None:
    reference = _dump(channels_last=False)
    assert gs.compare(reference, _dump(channels_last=True)).verdict == "same"
    found = gs.compare(reference, _dump(channels_last=True, causal=False))
    assert found.sentence.startswith("Forward first differs at `first` (rel_l2 "), found.sentence


def test_the_gradient_of_a_kernel_with_an_axis_of_one_has_the_layout_of_the_kernel() -> None:
    reference = _dump(channels_last=False, width=1)
    assert gs.compare(reference, _dump(channels_last=True, width=1)).verdict == "same"
    found = gs.compare(reference, _dump(channels_last=True, width=1, factor=1.5))
    errors = {row.name: row.metrics["rel_l2"] for row in found.rows if row.family == "param_grad"}
    assert max(errors["first/kernel"], errors["last/kernel"]) < 1, errors
