"""A maximum of equal values hands its gradient to the first of them, or a part of it to each: both are right."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

Pool = Callable[[Array], Array]


def to_the_first(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def to_each(x: Array) -> Array:
    count, rows, columns, channels = x.shape
    return x.reshape(count, rows // 2, 2, columns // 2, 2, channels).max((2, 4))


@jax.custom_vjp
def to_all(x: Array) -> Array:
    return to_each(x)


def _forward(x: Array) -> tuple[Array, Array]:
    return to_each(x), x


def _backward(x: Array, gradient: Array) -> tuple[Array]:
    largest = to_each(x).repeat(2, 1).repeat(2, 2)
    return (jnp.where(x == largest, gradient.repeat(2, 1).repeat(2, 2), 0),)


to_all.defvjp(_forward, _backward)


@cache
def captured(pool: Pool, *, rectified: bool = True, ops: bool = False) -> Dump:
    """A dense layer of images, a rectifier behind which many elements are zero, a pool, and a loss."""

    def loss(params: Any, x: Any) -> Any:
        with jax.named_scope("dense"):
            x = x @ params["kernel"]
        with jax.named_scope("act"):
            x = jnp.maximum(x - 1, 0) if rectified else jnp.round(x) + x - lax.stop_gradient(x)
        with jax.named_scope("pool"):
            x = pool(x)
        return jnp.square(x - 0.5).mean()

    return gs.capture(loss, {"kernel": drawn(1, 3, 5)}, drawn(2, 4, 6, 6, 3), ops=ops, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("ops", [False, True])
def test_gradients_of_equal_values_may_go_to_any_of_them_where_nothing_is_computed_from_it(ops: bool) -> None:
    one, other = captured(to_the_first, ops=ops), captured(to_each, ops=ops)
    assert np.abs(one["activation_grad/act"] - other["activation_grad/act"]).max() > 1e-3
    for reference, candidate in ((one, other), (other, one)):
        found = gs.compare(reference, candidate)
        assert found, (found.sentence, [(row.family, row.name, row.why) for row in found.rows if row.status != "same"])


@pytest.mark.slow
def test_what_is_computed_from_such_a_gradient_is_compared() -> None:
    assert not gs.compare(captured(to_the_first, rectified=False), captured(to_each, rectified=False))


@pytest.mark.parametrize("ops", [False, True])
def test_equal_values_that_all_get_the_whole_gradient_are_a_difference(ops: bool) -> None:
    found = gs.compare(captured(to_the_first, ops=ops), captured(to_all, ops=ops))
    assert not found
    assert "`act`" in found.sentence, found.sentence
