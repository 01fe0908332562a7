"""What a layer makes of the values that it scales and shifts first is told, where no program has an entry for that."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.likely.layers.kernels.kernel_uses import Work
from gradscope.comparison.diagnosis.likely.layers.kernels.scaled_reads import scaled_values
from gradscope.comparison.diagnosis.suspects.reading.kinds.read_sums import multiples
from tests.support.data import drawn
from tests.support.sampled import sampled

IMAGE = np.abs(drawn(1, 3, 9, 8, 3)) * 90
MEAN, DEVIATION = np.array([120.0, 110.0, 100.0], np.float32), np.array([60.0, 50.0, 40.0], np.float32)


def _divided(x: Any) -> Any:
    return x / 255


def _normalised(x: Any) -> Any:
    return (x - MEAN[None, None, None]) / DEVIATION[None, None, None]


@cache
def _images(prepared: Any, *, of_port: bool = False, bias: bool = True, function: Any = jax.nn.relu) -> Dump:
    """A convolution of an image that is prepared first, with channels last in the port."""
    stem, head = map(jax.named_scope, ("Conv_0", "Dense_0") if of_port else ("stem", "head"))

    def loss(weights: Any, batch: Any) -> Any:
        x = prepared(batch["x"])
        with stem:
            x = jax.lax.conv_general_dilated(
                x, weights["stem"], (2, 2), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x + weights["bias"][None, None, None] if bias else x
        with head:
            x = function(x).mean((1, 2)) @ weights["head"]
        return jnp.square(x).mean()

    weights = {"stem": drawn(2, 3, 3, 3, 5), "bias": 9 + drawn(3, 5), "head": drawn(4, 5, 2)}
    return gs.capture(loss, weights, {"x": IMAGE}, origins=False)


@pytest.mark.slow
@sampled(
    ("one", "other", "words"),
    [
        (_divided, lambda x: x, "it reads `x`, and the reference reads 3.9e-3 times `x`"),
        (
            _divided,
            lambda x: 2 * x / 255 - 1,
            "it reads 7.8e-3 times `x` less 1, and the reference reads 3.9e-3 times `x`",
        ),
        (
            _normalised,
            _divided,
            "it reads 3.9e-3 times `x`, and the reference reads [1.7e-2, 2.0e-2, 2.5e-2] by channel times `x` plus [",
        ),
    ],
)
def test_how_layers_prepare_what_they_read_is_told(one: Any, other: Any, words: str) -> None:
    reference = _images(one)
    assert gs.compare(reference, _images(one, of_port=True)).verdict == "same"
    found = gs.compare(reference, _images(other, of_port=True))
    assert found.sentence.startswith("Forward first differs at `stem` ("), found.sentence
    assert f", made here; {words}" in found.sentence, found.sentence


def test_other_faults_of_a_layer_are_told_that_prepares_what_it_reads() -> None:
    found = gs.compare(_images(_divided), _images(_divided, of_port=True, bias=False))
    assert ", made here; it adds no bias, and the reference `bias`; `Conv_0` in the candidate)" in found.sentence


@pytest.mark.slow
def test_the_layer_is_found_where_a_function_hides_in_how_large_units_its_output_is() -> None:
    reference = _images(_normalised, function=jnp.tanh)
    found = gs.compare(reference, _images(lambda x: _normalised(255 * x), of_port=True, function=jnp.tanh))
    assert found.sentence.startswith("Forward first differs at `stem` ("), found.sentence
    # Where the function is flat, rounding, which is not the same on all machines, hides how large its output is.
    assert re.search(r"made here; it reads \[4\.[234], 5\.1, 6\.4\] by channel times `x` plus \[", found.sentence)


def _standardised(x: Any) -> Any:
    """A batch norm, which hides a factor of what it reads but for its epsilon."""
    centred = x - x.mean((0, 1, 2), keepdims=True)
    return jax.nn.relu(centred / jnp.sqrt(jnp.square(centred).mean((0, 1, 2), keepdims=True) + 1e-3))


def test_the_layer_is_found_where_a_norm_hides_in_how_large_units_its_output_is() -> None:
    reference = _images(_divided, bias=False, function=_standardised)
    doubled = _images(lambda x: 2 * _divided(x), of_port=True, bias=False, function=_standardised)
    found = gs.compare(reference, doubled)
    assert found.sentence.startswith("Forward first differs at `stem` ("), found.sentence


def test_numbers_that_overflow_are_no_scaling_and_no_terms() -> None:
    huge = 1e200 * np.random.default_rng(1).normal(size=(8, 5))
    pair, kernel = (huge, huge), 1e200 * np.random.default_rng(2).normal(size=(5, 6))
    with np.errstate(all="ignore"):
        assert scaled_values(("x", pair), (kernel, kernel), (huge @ np.ones((5, 6)),) * 2, [], Work()) == []
        assert multiples(huge[:, 0], [huge[:, 1]]) is None


@pytest.mark.slow
def test_no_scaling_is_told_of_another_function() -> None:
    found = gs.compare(_images(_divided), _images(lambda x: jnp.sqrt(x / 255), of_port=True))
    assert "times `x`" not in found.sentence, found.sentence
