"""A mask or noise whose key the loss makes of a number is found; one whose key may change from step to step is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.lookup.functions.drawn.repeated_draws import Drawn, DrawnFor, drawn, repeated_draws
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

PARAMS = {"w": filled(1.0, 8, 8), "v": filled(1.0, 8, 1)}
BATCH = {"x": filled(1.0, 4, 8), "key": jax.random.key(1), "step": 3}
GLOBAL = jax.random.key(2)


def dropped(key: Any, h: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h / 0.5, 0)


def scanned(key: Any, h: Any) -> Any:
    return jax.lax.scan(lambda h, key: (dropped(key, h), None), h, jax.random.split(key, 2))[0]


def noised(key: Any, h: Any) -> Any:
    return h + 0.1 * jax.random.normal(key, h.shape)


def sampled(key: Any, h: Any) -> Any:
    """Samples as a variational autoencoder does."""
    return h + jnp.exp(h) * jax.random.normal(key, h.shape)


def diffused(key: Any, h: Any) -> Any:
    """Mixes noise in by a share that is drawn for each example."""
    of_time, of_noise = jax.random.split(key)
    share = jax.random.randint(of_time, (len(h), 1), 0, 10) / 10
    return jnp.sqrt(1 - share) * h + jnp.sqrt(share) * jax.random.normal(of_noise, h.shape)


def found(key: Callable[[Any], Any], draw: Callable[[Any, Any], Any] = dropped) -> tuple[int, int]:
    """Returns how many masks and noises are found in a loss that draws for what a layer makes, by the key for that."""

    def loss(p: Any, b: Any) -> Any:
        return jnp.square(draw(key(b), b["x"] @ p["w"]) @ p["v"]).mean()

    places = repeated_draws(trace_loss(loss, PARAMS, BATCH))
    return len(places.get("mask", ())), len(places.get("noise", ()))


@pytest.mark.parametrize(
    ("key", "draw", "expected"),
    [
        (lambda b: jax.random.key(0), dropped, (1, 0)),
        (lambda b: jax.random.PRNGKey(7), jax.jit(dropped), (1, 0)),
        (lambda b: jax.random.fold_in(jax.random.key(0), 1), jax.checkpoint(dropped), (1, 0)),
        (lambda b: jax.random.key(0), scanned, (1, 0)),
        (lambda b: jax.random.key(0), noised, (0, 1)),
        (lambda b: jax.random.PRNGKey(7), jax.jit(sampled), (0, 1)),
        (lambda b: jax.random.key(0), diffused, (0, 1)),
    ],
)
def test_what_a_key_of_a_number_draws_is_found(
    key: Callable[[Any], Any], draw: Callable[[Any, Any], Any], expected: tuple[int, int]
) -> None:
    assert found(key, draw) == expected


@pytest.mark.slow
@pytest.mark.parametrize("draw", [dropped, scanned, noised, diffused])
@pytest.mark.parametrize(
    "key",
    [
        lambda b: b["key"],
        lambda b: jax.random.fold_in(jax.random.key(0), b["step"]),
        lambda b: jax.random.fold_in(jax.random.key(0), jnp.sum(b["x"] > 0)),
        lambda b: GLOBAL,  # as is one that a step makes anew and the loss reads
    ],
)
def test_what_a_key_from_outside_draws_is_not(key: Callable[[Any], Any], draw: Callable[[Any, Any], Any]) -> None:
    assert found(key, draw) == (0, 0)


@pytest.mark.parametrize("shape", [(8,), (1, 8)])
def test_a_mask_that_is_the_same_for_all_examples_is_not(shape: tuple[int, ...]) -> None:
    """A coupling of a normalising flow divides the features by one that is drawn once."""

    def coupled(key: Any, h: Any) -> Any:
        return jnp.where(jnp.broadcast_to(jax.random.bernoulli(key, 0.5, shape), h.shape), h, 0)

    assert found(lambda b: jax.random.key(0), coupled) == (0, 0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda key, h: h + jnp.broadcast_to(jax.random.normal(key, (8,)), h.shape),  # as fixed positions
        lambda key, h: h + jax.random.normal(key, (1, 8)),
        lambda key, h: h @ jax.random.normal(key, (8, 8)),  # random features
        lambda key, h: h + 0 * jax.random.normal(key, h.shape).sum(),
    ],
)
def test_random_numbers_that_are_no_noise_of_each_example_are_not(draw: Callable[[Any, Any], Any]) -> None:
    assert found(lambda b: jax.random.key(0), draw) == (0, 0)


def test_neither_are_points_and_targets() -> None:
    def points(p: Any, _: Any) -> Any:
        x = jax.random.uniform(jax.random.key(0), (4, 8))
        return jnp.square((x * jnp.tanh(x @ p["w"])) @ p["v"]).mean()

    def targets(p: Any, b: Any) -> Any:
        return jnp.square(b["x"] @ p["w"] - (b["x"] + jax.random.normal(jax.random.key(0), b["x"].shape))).mean()

    assert [repeated_draws(trace_loss(each, PARAMS, BATCH)) for each in (points, targets)] == [{}, {}]


def test_a_loss_without_a_mask_has_none() -> None:
    assert found(lambda b: None, lambda _, h: h) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "inputs", "by_keys"),
    [
        (lambda p, b: b["key"], (2,), True),
        (lambda p, b: jax.random.fold_in(b["key"], b["step"]), (2, 3), True),
        (lambda p, b: jax.random.fold_in(b["key"], jnp.sum(b["x"] > 0)), (2,), False),
        (lambda p, b: jax.random.fold_in(b["key"], jnp.sum(p["w"] > 0)), (2,), False),
        (lambda p, b: GLOBAL, (5,), True),
    ],
)
@pytest.mark.parametrize(("what", "draw"), [("mask", dropped), ("noise", noised)])
def test_what_decides_random_numbers(
    what: DrawnFor,
    draw: Callable[[Any, Any], Any],
    key: Callable[[Any, Any], Any],
    inputs: tuple[int, ...],
    by_keys: bool,
) -> None:
    def loss(p: Any, b: Any) -> Any:
        return jnp.square(draw(key(p, b), b["x"] @ p["w"]) @ p["v"]).mean()

    trace = trace_loss(loss, PARAMS, BATCH)
    assert [leaf.name for leaf in trace.arguments] == ["v", "w", "key", "step", "x"]
    assert [each._replace(source=None) for each in drawn(trace)] == [Drawn(what, None, inputs, by_keys)]


def test_a_constant_of_a_step_that_is_being_traced_is_the_same_at_each_and_what_it_computes_is_not() -> None:
    found: list[int] = []

    def step(params: Any, x: Any, key: Any) -> None:
        def of(key: Any) -> Callable[[Any, Any], Any]:
            return lambda p, b: jnp.square(dropped(key, x @ p["w"]) @ p["v"]).mean() + 0 * b

        keys = (GLOBAL, key, jax.random.fold_in(GLOBAL, key[0]))
        found.extend(len(repeated_draws(trace_loss(of(each), params, x[0, 0]))) for each in keys)

    jax.make_jaxpr(step)(PARAMS, BATCH["x"], jax.random.PRNGKey(0))
    assert found == [1, 0, 0]
