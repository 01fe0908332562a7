"""Parts of a batch whose values have their channels elsewhere are those of the whole batch, of any name."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.pairing.loops.joined_parts import part_joins
from tests.support.data import drawn
from tests.support.sampled import sampled

EXAMPLES, CHANNELS, OUT = 6, 3, 5
FIRST, LAST = ("NCH", "OIH", "NCH"), ("NHC", "HIO", "NHC")


@cache
def _captured(
    length: int, names: tuple[str, str], *, parts: int, last: bool, factor: float = 1.0, masked: bool = False
) -> Dump:
    """A convolution and a dense layer, over the parts of a batch one after the other, and a mask between them."""
    conv, head = names
    kernel, x = drawn(1, 3, CHANNELS, OUT), drawn(2, EXAMPLES, length, CHANNELS)

    def one(weights: Any, x: Any) -> Any:
        with jax.named_scope(conv):
            x = factor * jax.lax.conv_general_dilated(
                x, weights[conv], (1,), "SAME", dimension_numbers=LAST if last else FIRST
            )
        if masked:
            with jax.named_scope("mask"):
                mask = x > 0
            x = jnp.where(mask, x, 0.1 * x)
        with jax.named_scope(head):
            x = jnp.tanh(x).mean(1 if last else 2) @ weights[head]
        return jnp.square(x).mean()

    def loss(weights: Any, batch: Any) -> Any:
        return sum(one(weights, each) for each in jnp.split(batch["x"], parts)) / parts

    weights = {conv: kernel if last else kernel.transpose(2, 1, 0), head: drawn(3, OUT, 2)}
    return gs.capture(loss, weights, {"x": x if last else x.transpose(0, 2, 1)}, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("length", [7, OUT], ids=["by shapes", "by values"])
@pytest.mark.parametrize("of_ref", [False, True], ids=["in the candidate", "in the reference"])
@sampled("names", [("conv", "head"), ("Conv_0", "Dense_0")], ids=["same names", "other names"])
def test_values_of_parts_with_channels_elsewhere_are_joined(length: int, of_ref: bool, names: tuple[str, str]) -> None:
    reference = _captured(length, ("conv", "head"), parts=2 if of_ref else 1, last=False)
    port = _captured(length, names, parts=1 if of_ref else 2, last=True)
    found = gs.compare(reference, port)
    assert found.verdict == "same", found.sentence
    wrong = gs.compare(reference, _captured(length, names, parts=1 if of_ref else 2, last=True, factor=1.1))
    assert wrong.sentence.startswith("Forward first differs at `conv` (rel_l2 0.1"), wrong.sentence


@pytest.mark.slow
@pytest.mark.parametrize("names", [("conv", "head"), ("Conv_0", "Dense_0")], ids=["same names", "other names"])
def test_masks_of_parts_with_channels_elsewhere_are_joined_as_their_values_are(names: tuple[str, str]) -> None:
    reference = _captured(OUT, ("conv", "head"), parts=1, last=False, masked=True)
    found = gs.compare(reference, _captured(OUT, names, parts=2, last=True, masked=True))
    assert found.verdict == "same", found.sentence


@pytest.mark.parametrize("moved", [(0, 3, 1, 2), (0, 2, 3, 1)])
def test_a_join_with_channels_elsewhere_and_its_reverse_belong_together(moved: tuple[int, ...]) -> None:
    parts = [drawn(4, 2, 3, 4, 5), drawn(5, 4, 3, 4, 5)]
    whole = np.concatenate(parts).transpose(moved)
    (join,) = part_joins(whole.shape, [each.shape for each in parts])
    made: list[Any] = [*parts]
    for step in join.joining((1, 0, 2)):
        made = list(step.apply(made))
    np.testing.assert_array_equal(made[0], np.concatenate([whole[2:4], whole[:2], whole[4:]]))
    for step in join.parting((1, 0, 2)):
        made = list(step.apply(made))
    for part, expected in zip(made, parts, strict=True):
        np.testing.assert_array_equal(part, expected)
