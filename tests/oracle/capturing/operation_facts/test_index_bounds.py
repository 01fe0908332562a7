"""Integers of a batch have bounds where they look up a table, the values of an example, or classes, as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.capturing.explain.index_bounds import index_bounds
from gradscope.tracing.tracer import trace_loss
from tests.support.data import drawn

P = {"table": drawn(0, 7, 3), "w": drawn(1, 3, 4)}
IDS = jnp.zeros((5, 6), jnp.int32)
_Loss = Callable[[Any, Any], Any]


def bounds(loss: _Loss, dtype: Any = np.int32) -> list[tuple[str, str, int, str | None]]:
    found = index_bounds(trace_loss(loss, P, {"ids": IDS.astype(dtype), "y": jnp.zeros(5, dtype)}))
    assert all(each.source is not None and "test_index_bounds.py:" in each.source for each in found)
    return [each[:4] for each in found]


def scores(p: Any, ids: Any) -> Any:
    return jax.nn.log_softmax(jnp.tanh(p["table"][ids].mean(1)) @ p["w"])


TABLE = ("ids", "rows", 7, "table")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int8, np.uint32])
def test_a_table_and_classes(dtype: Any) -> None:
    def loss(p: Any, b: Any) -> Any:
        return -(jax.nn.one_hot(b["y"], 4) * scores(p, b["ids"])).sum(1).mean()

    assert bounds(loss, dtype) == [TABLE, ("y", "classes", 4, None)]


@pytest.mark.parametrize(
    ("pick", "expected"),
    [
        (lambda z, y: z[jnp.arange(5), y], [("y", "values", 4, None)]),
        (jax.vmap(lambda z, y: z[y]), [("y", "values", 4, None)]),
        (lambda z, y: z[jnp.arange(5), y - 1], []),  # they count from 1, and the program knows it
        (lambda z, y: z[jnp.arange(5), jnp.clip(y, 0, 3)], []),
        (lambda z, y: (jax.nn.one_hot(y - 1, 4) * z).sum(1), []),
        (lambda z, y: jnp.take_along_axis(z, y[:, None], 1), []),  # fills with NaN
    ],
)
def test_values_that_are_picked(pick: _Loss, expected: list[Any]) -> None:
    assert bounds(lambda p, b: -pick(scores(p, b["ids"]), b["y"]).mean()) == [TABLE, *expected]


@pytest.mark.parametrize(
    ("ids", "has_bound"),
    [
        (lambda ids: ids[:, :-1], True),
        (lambda ids: ids.reshape(3, 10), True),
        (lambda ids: ids + 1, False),
        (lambda ids: ids % 7, False),
        (lambda ids: jnp.where(ids < 0, 0, ids), True),  # those below are others'
    ],
)
def test_what_is_computed_of_integers_has_no_bound(ids: Callable[[Any], Any], has_bound: bool) -> None:
    assert bounds(lambda p, b: scores(p, ids(b["ids"])).mean()) == ([TABLE] if has_bound else [])
