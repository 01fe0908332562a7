"""Patches of an image that are merged column by column: a layout where they are used so, and a fault where not."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(11).normal
KERNEL = _draw(size=(2, 2, 3, 5)).astype(np.float32)
POSITIONS = _draw(size=(12, 5)).astype(np.float32)
MIX, HEAD = _draw(size=(12, 12)).astype(np.float32), _draw(size=(5, 3)).astype(np.float32)
IMAGE = _draw(size=(2, 6, 8, 3)).astype(np.float32)


def _behind(names: tuple[str, str], x: Any, positions: Any, mix: Any, head: Any) -> Any:
    x = x + positions[None]
    with jax.named_scope(names[0]):
        x = jnp.tanh(jnp.einsum("pq,nqc->npc", mix, x))
    with jax.named_scope(names[1]):
        return jnp.square(x @ head).mean()


@cache
def _reference() -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("embedding"):
            x = jax.lax.conv_general_dilated(
                batch["image"], weights["embedding"], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        with jax.named_scope("positions"):
            x = x.reshape(2, 12, 5) + 0.0
        return _behind(("mix", "head"), x, weights["positions"], weights["mix"], weights["head"])

    weights = {"embedding": KERNEL, "positions": POSITIONS, "mix": MIX, "head": HEAD}
    return gs.capture(loss, weights, {"image": IMAGE}, origins=False)


@cache
def _candidate(*, by_columns: bool, used: bool = False) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["image"].reshape(2, 3, 3, 2, 4, 2)
        x = x.transpose(0, 4, 2, 1, 3, 5) if by_columns else x.transpose(0, 2, 4, 1, 3, 5)
        with jax.named_scope("patches"):
            x = x.reshape(2, 12, 12) @ weights["patches"]
        return _behind(("tokens", "out"), x, weights["pos"], weights["tokens"], weights["out"])

    order = np.arange(12).reshape(3, 4).T.ravel() if used else np.arange(12)
    weights = {
        "patches": np.ascontiguousarray(KERNEL.transpose(2, 0, 1, 3).reshape(12, 5)),
        "pos": POSITIONS[order],
        "tokens": np.ascontiguousarray(MIX[:, order]),
        "out": HEAD,
    }
    return gs.capture(loss, weights, {"image": np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2))}, origins=False)


def test_patches_in_another_order_are_a_fault_of_the_layer_that_makes_them() -> None:
    reference = _reference()
    assert gs.compare(reference, _candidate(by_columns=False)).verdict == "same"
    found = gs.compare(reference, _candidate(by_columns=True))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "embedding", found.sentence


@pytest.mark.parametrize("by_columns", [False, True])
def test_patches_in_another_order_are_a_layout_where_they_are_used_in_that_order(by_columns: bool) -> None:
    found = gs.compare(_reference(), _candidate(by_columns=by_columns, used=by_columns))
    rows = {(row.family, row.name): row.status for row in found.rows}
    assert rows["activation", "embedding"] == rows["activation", "mix"] == "same", found.sentence
