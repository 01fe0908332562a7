"""A function that a residual block adds to what it reads is told where the port has another form of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.likely.other_forms import _functions
from tests.support.data import drawn

SIZES = {"stem": (6, 12), "up": (12, 12), "head": (12, 4)}
WEIGHTS = {name: drawn(number, *size) / size[0] ** 0.5 for number, (name, size) in enumerate(SIZES.items())}
BATCH = drawn(9, 8, 6)


def _block(function: Any, factor: float = 1.0, *, size: float = 1.0, dtype: Any = jnp.float32) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("stem"):
            x = batch @ weights["stem"]
        with jax.named_scope("block"):
            with jax.named_scope("up"):
                y = size * x @ weights["up"]
            x = factor * x + function(y)
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    weights = {name: weight.astype(dtype) for name, weight in WEIGHTS.items()}
    return gs.capture(loss, weights, BATCH.astype(dtype), origins=False)


def _gelu(*, approximate: bool) -> Any:
    return lambda x: jax.nn.gelu(x, approximate=approximate)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "verdict"), [(1.0, "different"), (0.3, "same")])
def test_another_form_is_told_also_where_the_sum_is_within_tolerance(size: float, verdict: str) -> None:
    found = gs.compare(*(_block(_gelu(approximate=each), size=size) for each in (False, True)))
    assert found.verdict == verdict
    told = "adds the gelu by tanh of `block/up` to `stem`, and the reference the gelu by erf"
    assert told in found.sentence, found.sentence
    assert "noise" not in found.sentence


def test_what_a_stream_is_rounded_by_is_no_function_of_a_small_branch() -> None:
    stream, branch, rounding = (np.asarray(drawn(number, 20, 8), np.float64) for number in range(3))
    small = 1e-4 * branch
    assert not _functions(stream + small + 2e-4 * rounding, small, stream, error=3e-4)
    assert _functions(stream + np.tanh(branch), branch, stream, error=3e-4) == ["tanh"]


def test_another_function_is_told() -> None:
    found = gs.compare(_block(jax.nn.relu), _block(jax.nn.silu))
    told = "made here; it adds the silu of `block/up` to `stem`, and the reference the relu)"
    assert told in found.sentence, found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_no_function_is_told_where_both_have_it(factor: float) -> None:
    found = gs.compare(_block(jax.nn.silu), _block(jax.nn.silu, factor))
    assert found.verdict == ("same" if factor == 1.0 else "different")
    assert "adds the" not in found.sentence, found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("approximate", [True, False])
def test_functions_that_rounding_makes_alike_are_told_both(approximate: bool) -> None:
    reference, port = (_block(each, dtype=jnp.bfloat16) for each in (_gelu(approximate=approximate), jax.nn.silu))
    told = "it adds the silu of `block/up` to `stem`, and the reference the gelu by tanh or gelu by erf)"
    sentence = gs.compare(reference, port).sentence
    assert told in sentence, sentence
    assert (
        told.replace("gelu by tanh or gelu by erf", "relu")
        in gs.compare(_block(jax.nn.relu, dtype=jnp.bfloat16), port).sentence
    )
