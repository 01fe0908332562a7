"""A step that is called as the layer whose parameters it uses is no pair with what the layer returns."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

WIDTH = 4
WORDS = np.random.default_rng(1).integers(0, 7, (6, 3)).astype(np.int32)


@cache
def _bag(*, scoped: bool, averaged: bool = False) -> Dump:
    """The dump of a bag of embeddings before a dense layer."""
    weights = {"bag": {"embedding": drawn(2, 7, WIDTH)}, "out": {"kernel": drawn(3, WIDTH, 2)}}

    def loss(weights: Any, words: Any) -> Any:
        with jax.named_scope("bag") if scoped else nullcontext():
            x = weights["bag"]["embedding"][words]
            x = x.mean(1) if averaged else x.sum(1)
        with jax.named_scope("out") if scoped else nullcontext():
            x = jnp.tanh(x) @ weights["out"]["kernel"]
        return jnp.square(x).mean()

    return gs.capture(loss, weights, WORDS, origins=False)


@cache
def _masked(*, scoped: bool, function: Any = jnp.tanh) -> Dump:
    """The dump of a kernel with as many elements as what it makes, of which a triangle is used."""
    weights = {
        "first": {"kernel": drawn(4, WIDTH, 6)},
        "masked": {"kernel": drawn(5, 6, 9), "bias": drawn(6, 9)},
        "out": {"kernel": drawn(7, 9, 2)},
    }
    triangle = np.triu(np.ones((6, 9), np.float32))

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first") if scoped else nullcontext():
            x = x @ weights["first"]["kernel"]
        x = function(x)
        with jax.named_scope("masked") if scoped else nullcontext():
            kernel = weights["masked"]["kernel"] * triangle
            x = x @ kernel
            x = x + weights["masked"]["bias"][None, None]
        with jax.named_scope("out") if scoped else nullcontext():
            x = jnp.tanh(x) @ weights["out"]["kernel"]
        return jnp.square(x).mean()

    return gs.capture(loss, weights, drawn(8, 3, 2, WIDTH), origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("program", [_bag, _masked])
def test_a_layer_is_paired_with_what_is_made_of_a_step_that_is_called_so(program: Any) -> None:
    for scoped in (True, False):
        found = gs.compare(program(scoped=scoped), program(scoped=not scoped))
        assert found.verdict == "same", found.sentence


def test_no_value_is_compared_with_a_kernel_that_is_called_as_its_layer() -> None:
    found = gs.compare(_masked(scoped=True), _masked(scoped=False, function=jax.nn.relu))
    assert "shape" not in found.sentence, found.sentence
    assert "`masked` (" in found.sentence, found.sentence


@pytest.mark.slow
def test_what_sums_up_rows_otherwise_is_named() -> None:
    found = gs.compare(_bag(scoped=True), _bag(scoped=False, averaged=True))
    assert "shape" not in found.sentence, found.sentence
    assert "`bag`" in found.sentence.partition(". Backward")[0], found.sentence
