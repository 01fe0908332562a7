"""Gradients that pass the flat region of a rectifier show that a program leaves it out."""

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

_draw = np.random.default_rng(5).normal
WEIGHTS = {name: _draw(size=(6, 6)).astype(np.float32) / 2 for name in ("into", "reads", "carried")}
X = _draw(size=(4, 3, 6)).astype(np.float32)


@cache
def _recurrent(*, scope: bool, rectified: bool = True, flipped: bool = False) -> Dump:
    """A dense layer, a rectifier that one program has a scope for, and a recurrent layer."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("dense"):
            x = x @ weights["into"]
        with jax.named_scope("rectifier") if scope else nullcontext():
            x = jax.nn.relu(x) if rectified else x
        x = x[..., ::-1] if flipped else x
        with jax.named_scope("recurrent"):
            h = jnp.zeros((4, 6))
            for step in range(3):
                h = jnp.tanh(x[:, step] @ weights["reads"] + h @ weights["carried"])
        return jnp.square(h).mean()

    return gs.capture(loss, WEIGHTS, X, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("of_ref", [True, False])
def test_a_rectifier_is_left_out_where_gradients_pass_its_flat_region(of_ref: bool) -> None:
    with_scope, without = _recurrent(scope=True), _recurrent(scope=False, rectified=False)
    found = gs.compare(*(with_scope, without) if of_ref else (without, with_scope))
    side = "reference" if of_ref else "candidate"
    assert f"first differs at `rectifier`, only in the {side}, and next at `recurrent`" in found.sentence
    assert "where `rectifier` is flat at " in found.sentence


def test_a_rectifier_is_not_left_out_where_no_gradient_passes() -> None:
    found = gs.compare(_recurrent(scope=True), _recurrent(scope=False, flipped=True))
    assert found.verdict == "different"
    assert "first differs at `rectifier`" not in found.sentence
