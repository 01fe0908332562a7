"""`check` says of a wrong rule that it returns the derivative in another order, or is wrong for few elements alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.proving import ProofOptions, ProofRow, prove
from gradscope.tracing.loading.model import Model
from tests.support.data import evenly
from tests.support.sampled import sampled


def with_rule(function: Callable[..., Any], faulty: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns a function with a rule that makes of the derivative with respect to its first argument another one."""

    @jax.custom_vjp
    def ruled(w: Any, x: Any) -> Any:
        return function(w, x)

    def backward(saved: Any, arriving: Any) -> Any:
        of_w, of_x = jax.vjp(function, *saved)[1](arriving)
        return faulty(of_w), of_x

    ruled.defvjp(lambda w, x: (function(w, x), (w, x)), backward)
    return ruled


def row_of(ruled: Callable[..., Any], w: Any, x: Any) -> ProofRow:
    model = Model.of_values("model", lambda w, x: jnp.square(ruled(w, x)).sum(), w, x)
    found = prove(model, Arguments.of(w, x), Timings(), ProofOptions(allowed=()))
    return next(row for row in found.rows if row.what.startswith("custom rule of"))


def product(w: Any, x: Any) -> Any:
    return x @ w


def convolution(w: Any, x: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def shifted(w: Any, x: Any) -> Any:
    return jnp.sin(jnp.roll(w, 1)) * x


def sines(w: Any, x: Any) -> Any:
    return jnp.sin(w * x)


def clipped(w: Any, x: Any) -> Any:
    return jnp.sin(w.at[:, 0].set(0.0) * x)


def at(*index: Any, by: float) -> Callable[[Any], Any]:
    return lambda g: g.at[index].multiply(by)


SQUARE, VECTOR, LONG = evenly(-1.0, 1.5, 4, 4), evenly(-0.9, 1.4, 7), evenly(-2.0, 1.7, 2, 33)
KERNEL, IMAGE = evenly(-1.0, 1.2, 3, 3, 2, 2), evenly(-0.8, 1.1, 1, 5, 5, 2)
ALL, ENDS, WEIGHTS = slice(None), np.array([0, 32]), np.arange(33, dtype=np.float32)[None]


@sampled(
    ("function", "faulty", "w", "x", "said"),
    [
        (product, jnp.transpose, SQUARE, evenly(-0.7, 0.9, 3, 4), "the derivative with axes 0 and 1 exchanged"),
        (convolution, lambda g: g[::-1, ::-1], KERNEL, IMAGE, "the derivative reversed along axes 0 and 1"),
        (convolution, lambda g: g[:, ::-1], KERNEL, IMAGE, "the derivative reversed along axis 1"),
        (convolution, lambda g: g.swapaxes(2, 3), KERNEL, IMAGE, "the derivative with axes 2 and 3 exchanged"),
        (shifted, lambda g: jnp.roll(g, 2), VECTOR, VECTOR, "the derivative rolled by 2 along axis 0"),
        (sines, at(ALL, 32, by=2.0), LONG, LONG, "2 times the derivative at index 32 of axis 1"),
        (sines, at(ALL, ENDS, by=0.0), LONG, LONG, "0 times the derivative at indices 0 and 32 of axis 1"),
        (sines, at(1, by=-1.0), LONG, LONG, "-1 times the derivative at index 1 of axis 0"),
        (sines, at(0, 7, by=0.5), LONG, LONG, "0.5 times the derivative at index 0 of axis 0 and index 7 of axis 1"),
        (sines, lambda g: g.at[:, 5].add(1.0), LONG, LONG, "no multiple of the derivative at index 5 of axis 1"),
        (clipped, lambda g: g.at[:, 0].set(1.0), LONG, LONG, "not zero, as the derivative is at index 0 of axis 1"),
        (sines, lambda g: g + 1.0, LONG, LONG, "no multiple of the derivative"),
        (sines, lambda g: g * WEIGHTS, LONG, LONG, "no multiple of the derivative"),
        (sines, lambda g: jnp.full_like(g, 0.3), LONG, LONG, "the same whatever gradient arrives"),
    ],
)
def test_what_a_rule_returns_in_place_of_the_derivative_is_said(
    function: Any, faulty: Any, w: Any, x: Any, said: str
) -> None:
    row = row_of(with_rule(function, faulty), w, x)
    assert (row.status, row.why, row.factor) == ("wrong", f"w (param/value): {said}", None)


@pytest.mark.slow
@pytest.mark.parametrize("function", [sines, clipped])
def test_a_right_rule_is_right_in_every_order_and_at_every_index(function: Any) -> None:
    assert row_of(with_rule(function, lambda g: g), LONG, LONG).status == "correct"
