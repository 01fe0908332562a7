"""A layer whose kernel has sums of the same examples for its gradient reads them, whatever else it computes."""

from __future__ import annotations

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


def test_a_step_in_front_of_a_layer_that_reads_another_value_is_suspected() -> None:
    sentence = gs.compare(_program(drop=True), _program(drop=False, fault="another")).sentence
    assert sentence.startswith("Forward first differs at `drop`, only in the reference, "), sentence
