"""A value is compared with the slice of it that the loss reads, where the other program computes that alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(3).normal
WEIGHTS = {
    "scale": 1 + _draw(size=6).astype(np.float32) / 4,
    "head": _draw(size=(6, 3)).astype(np.float32),
    "up": _draw(size=(6, 6)).astype(np.float32),
}
TOKENS = _draw(size=(4, 7, 6)).astype(np.float32)


def _dump(*, first: bool, token: slice | int = 0, eps: float = 1e-5, ops: bool = False, rest: float = 0.0) -> Dump:
    """Normalises tokens, and reads some of them: those are taken first, or after that."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("up"):
            x = x @ weights["up"]
        with jax.named_scope("norm"):
            h = x[:, token] if first else x
            h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + eps)
            h = h * jnp.broadcast_to(weights["scale"], h.shape)
        read = h if first else h[:, token]
        with jax.named_scope("head"):
            read = read @ weights["head"]
        return (read**3).mean() + (rest * h**2).sum()

    return gs.capture(loss, WEIGHTS, TOKENS, origins=False, ops=ops)


@pytest.mark.parametrize("token", [0, 3, -1, slice(2, 5)])
@pytest.mark.parametrize("larger", ["reference", "candidate"])
def test_a_value_agrees_with_the_slice_of_it_that_is_read(token: slice | int, larger: str) -> None:
    dumps = [_dump(first=first, token=token) for first in (larger == "candidate", larger == "reference")]
    found = gs.compare(*dumps)
    assert found, found.sentence
    rows = {(row.family, row.name): row for row in found.rows}
    assert rows["activation", "norm"].metrics["rel_l2"] < 1e-6
    assert rows["activation_grad", "norm"].metrics["rel_l2"] < 1e-6


def test_a_difference_in_the_slice_is_found_in_the_layer() -> None:
    found = gs.compare(_dump(first=False), _dump(first=True, eps=1e-1))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "norm"
    assert "rel_l2" in found.sentence


def test_another_slice_differs() -> None:
    found = gs.compare(_dump(first=False), _dump(first=True, token=1))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "norm"


def test_a_value_of_which_the_loss_reads_all_is_no_slice() -> None:
    found = gs.compare(_dump(first=False, rest=0.01), _dump(first=True))
    assert found.first_divergence.forward is not None
    assert "the shape is" in found.sentence
