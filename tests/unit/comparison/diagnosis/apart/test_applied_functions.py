"""A layer of one name has its activation function inside in one program, and behind it in the other."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(41).normal
SIZES = {"stem": (6, 8), "hidden": (8, 7), "out": (7, 3)}
KERNELS = {name: (_draw(size=size) / np.sqrt(size[0])).astype(np.float32) for name, size in SIZES.items()}
X = _draw(size=(9, 6)).astype(np.float32)
MASK = np.random.default_rng(2).integers(0, 2, (9, 7)).astype(np.float32)


@cache
def _captured(*, inside: bool, stem: float = 1.0, masked: bool = False, by_tanh: bool = False) -> Dump:
    """Three dense layers; the program with the function inside of its second layer has a name for that of the first."""
    function = partial(jax.nn.gelu, approximate=by_tanh)

    def loss(kernels: Any, x: Any) -> Any:
        with jax.named_scope("stem"):
            x = x @ kernels["stem"] * stem
        with jax.named_scope("act") if inside else nullcontext():
            x = jax.nn.relu(x)
        with jax.named_scope("hidden"):
            x = x @ kernels["hidden"]
            x = function(x) if inside else x
        x = x if inside else function(x)
        x = x * MASK if masked else x
        with jax.named_scope("out"):
            x = x @ kernels["out"]
        return jnp.square(x).mean()

    return gs.capture(loss, KERNELS, X, origins=False)


@pytest.mark.slow
def test_it_is_no_difference_of_the_layer_where_the_programs_read_values_that_differ() -> None:
    found = gs.compare(_captured(inside=True), _captured(inside=False, stem=1.0005))
    assert found.sentence.startswith("Forward first differs at `stem` "), found.sentence
    # By how much that is off, either form of the function would do: the layer behind shows which it is.
    differing = {row.name for row in found.rows if row.family.startswith("activation") and row.status == "different"}
    assert "hidden" not in differing


def test_something_behind_the_function_is_no_fault_of_the_layer_nor_of_those_before_it() -> None:
    found = gs.compare(_captured(inside=True), _captured(inside=False, masked=True))
    assert found.sentence.startswith("Forward first differs at `out` "), found.sentence


@pytest.mark.slow
def test_another_function_behind_the_layer_is_told() -> None:
    sentence = gs.compare(_captured(inside=True), _captured(inside=False, by_tanh=True), tol=1e-5).sentence
    told = "it is the gelu by erf of `hidden`, which goes through gelu by tanh in the candidate"
    assert sentence.startswith("Forward first differs at `hidden` "), sentence
    assert told in sentence, sentence
