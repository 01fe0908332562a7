"""The averages that a loss returns to be given them again are found, and nothing else that it returns is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.lookup.functions.running_averages import RunningAverage, running_averages
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

PARAMS = {"w": filled(1.0, 8, 4)}
BATCH = {"old": filled(0.0, 4), "step": 3, "x": filled(1.0, 16, 8)}
MEAN = RunningAverage(input=1, output=0)


def found(returned: Callable[[Any, Any, Any], Any], value: Callable[[Any, Any], Any] = lambda h, old: h) -> Any:
    """Returns the averages among what a loss returns, made of the mean of a layer, what it is given, and the batch."""

    def loss(p: Any, b: Any) -> Any:
        h = b["x"] @ p["w"]
        return jnp.square(value(h, b["old"][None])).mean(), returned(h.mean(0), b["old"], b)

    return list(running_averages(trace_loss(loss, PARAMS, BATCH)))


@pytest.mark.parametrize(
    "returned",
    [
        lambda mean, old, b: 0.9 * old + 0.1 * mean,
        lambda mean, old, b: old + (mean - old) / 10,
        lambda mean, old, b: old - 0.1 * (old - mean),
        lambda mean, old, b: jax.lax.stop_gradient(jax.jit(lambda m, o: 0.9 * o + 0.1 * m)(mean, old)),
        lambda mean, old, b: jnp.where(b["step"] == 0, mean, 0.99 * old + 0.01 * mean),
    ],
)
def test_a_running_average_is_found(returned: Callable[[Any, Any, Any], Any]) -> None:
    assert found(returned) == [MEAN]


@pytest.mark.parametrize(
    "returned",
    [
        lambda mean, old, b: mean,
        lambda mean, old, b: old,
        lambda mean, old, b: old + mean,  # a sum over steps, as of a metric
        lambda mean, old, b: 0.9 * old,  # nothing new is in it
        lambda mean, old, b: 0.5 * b["x"] + 0.5 * mean[0],  # the loss depends on x
        lambda mean, old, b: (0.9 * old + 0.1 * mean).sum(),
        lambda mean, old, b: mean.sum() + 1.0,  # a number has no name
    ],
)
def test_another_value_is_none(returned: Callable[[Any, Any, Any], Any]) -> None:
    assert found(returned) == []


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (lambda b: b["flag"], [RunningAverage(input=2, output=0)]),
        (lambda b: b["step"] == 0, []),  # a number of the batch: the value may be meant to begin anew
        (lambda b: b["x"][0, 0] > 0, []),
    ],
)
def test_an_average_that_the_loss_depends_on_is_found_where_a_flag_says_that_it_begins(
    first: Callable[[Any], Any], expected: list[RunningAverage]
) -> None:
    def loss(p: Any, b: Any) -> Any:
        h = b["x"] @ p["w"]
        mean = h.mean(0)
        average = jax.lax.select(first(b), mean, 0.9 * b["old"] + 0.1 * mean)
        return jnp.square(h - average[None]).mean(), average

    assert list(running_averages(trace_loss(loss, PARAMS, {**BATCH, "flag": jnp.asarray(True)}))) == expected


def test_what_the_loss_depends_on_may_be_the_same_on_purpose() -> None:
    """The weights of a teacher, or data of which a loss returns the next ones."""
    assert found(lambda mean, old, b: 0.9 * old + 0.1 * mean, lambda h, old: h - old) == []
