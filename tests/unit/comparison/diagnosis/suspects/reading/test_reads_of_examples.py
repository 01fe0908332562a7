"""A layer whose kernel has sums of the same examples for its gradient reads them, whatever else it computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(5).normal
PARAMS = {
    "first": _draw(size=(8, 40)),
    "dense": _draw(size=(40, 6)) / 6,
    "bias": _draw(size=6),
    "head": _draw(size=(6, 3)),
}
WEIGHTS = {name: each.astype(np.float32) for name, each in PARAMS.items()}
BATCH = _draw(size=(5, 8)).astype(np.float32)


@cache
def _program(*, drop: bool, fault: str = "") -> Dump:
    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = x @ weights["first"]
        x = jnp.sin(x) if fault == "another" else jax.nn.relu(x)
        if drop:  # as a module of PyTorch that is left out in evaluation
            with jax.named_scope("drop"):
                x = x * 1.0
        with jax.named_scope("dense"):
            x = x @ weights["dense"] + weights["bias"][None]
            x = {"clip": jnp.clip(x, -0.5, 0.5), "square": x + 0.1 * jnp.square(x)}.get(fault, x)
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@pytest.mark.parametrize("fault", ["clip", "square"])
def test_a_step_in_front_of_a_layer_that_differs_is_not_suspected(fault: str) -> None:
    reference = _program(drop=True)
    sentence = gs.compare(reference, _program(drop=False, fault=fault)).sentence
    assert sentence.startswith("Forward first differs at `dense` (rel_l2 "), sentence


@pytest.mark.slow
def test_a_step_in_front_of_a_layer_that_reads_another_value_is_suspected() -> None:
    sentence = gs.compare(_program(drop=True), _program(drop=False, fault="another")).sentence
    assert sentence.startswith("Forward first differs at `drop`, only in the reference, "), sentence


IMAGES = _draw(size=(4, 8, 8, 2)).astype(np.float32)
POOLED = {
    name: _draw(size=size).astype(np.float32)
    for name, size in {"stem": (3, 3, 2, 3), "dense": (48, 8), "head": (8, 5)}.items()
}


@cache
def _pooled(fault: str = "") -> Dump:
    """A convolution, whose maxima of windows a dense layer of fewer outputs than inputs reads."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("stem"):
            x = jax.lax.conv_general_dilated(
                x, weights["stem"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        windows = jax.nn.relu(x).reshape(len(x), 4, 2, 4, 2, 3)
        x = windows.mean((2, 4)) if fault == "mean" else windows.max((2, 4))
        x = (x.transpose(0, 3, 1, 2) if fault == "order" else x).reshape(len(x), -1)
        with jax.named_scope("dense"):
            x = x @ weights["dense"]
            x = x + 0.1 * jnp.square(x) if fault == "square" else x
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    return gs.capture(loss, POOLED, IMAGES, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("mean", "; it reads the mean of windows of the relu of `stem`, and the reference the maximum of windows of "),
        (
            "order",
            ", in the order of the elements that it reads, as where axes are flattened or moved in another order",
        ),
        ("square", ", made here or right before it). "),
    ],
)
def test_what_few_examples_read_is_found_by_the_gradient_of_the_kernel(fault: str, told: str) -> None:
    sentence = gs.compare(_pooled(), _pooled(fault)).sentence
    assert sentence.startswith("Forward first differs at `dense` (rel_l2 "), sentence
    assert told in sentence, sentence
