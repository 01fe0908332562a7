"""A dropout whose key the loss makes of a number is found; one whose key may be another one at the next step is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.lookup.functions.repeated_masks import DrawnMask, drawn_masks, repeated_masks
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

PARAMS = {"w": filled(1.0, 8, 8), "v": filled(1.0, 8, 1)}
BATCH = {"x": filled(1.0, 4, 8), "key": jax.random.key(1), "step": 3}
GLOBAL = jax.random.key(2)


def dropped(key: Any, h: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h / 0.5, 0)


def scanned(key: Any, h: Any) -> Any:
    return jax.lax.scan(lambda h, key: (dropped(key, h), None), h, jax.random.split(key, 2))[0]


def found(key: Callable[[Any], Any], drop: Callable[[Any, Any], Any] = dropped) -> int:
    """Returns how many masks are found in a loss that drops what a layer makes, by the key that it makes of a batch."""

    def loss(p: Any, b: Any) -> Any:
        return jnp.square(drop(key(b), b["x"] @ p["w"]) @ p["v"]).mean()

    return len(repeated_masks(trace_loss(loss, PARAMS, BATCH)))


@pytest.mark.parametrize(
    ("key", "drop"),
    [
        (lambda b: jax.random.key(0), dropped),
        (lambda b: jax.random.PRNGKey(7), jax.jit(dropped)),
        (lambda b: jax.random.fold_in(jax.random.key(0), 1), jax.checkpoint(dropped)),
        (lambda b: jax.random.key(0), scanned),
    ],
)
def test_a_mask_of_a_number_is_found(key: Callable[[Any], Any], drop: Callable[[Any, Any], Any]) -> None:
    assert found(key, drop) == 1


@pytest.mark.parametrize("drop", [dropped, scanned])
@pytest.mark.parametrize(
    "key",
    [
        lambda b: b["key"],
        lambda b: jax.random.fold_in(jax.random.key(0), b["step"]),
        lambda b: jax.random.fold_in(jax.random.key(0), jnp.sum(b["x"] > 0)),
        lambda b: GLOBAL,  # as is one that a step makes anew and the loss reads
    ],
)
def test_a_mask_of_a_key_from_outside_is_not(key: Callable[[Any], Any], drop: Callable[[Any, Any], Any]) -> None:
    assert found(key, drop) == 0


@pytest.mark.parametrize("shape", [(8,), (1, 8)])
def test_a_mask_that_is_the_same_for_all_examples_is_not(shape: tuple[int, ...]) -> None:
    """A coupling of a normalising flow divides the features by one that is drawn once."""

    def coupled(key: Any, h: Any) -> Any:
        return jnp.where(jnp.broadcast_to(jax.random.bernoulli(key, 0.5, shape), h.shape), h, 0)

    assert found(lambda b: jax.random.key(0), coupled) == 0


def test_a_loss_without_a_mask_has_none() -> None:
    assert found(lambda b: None, lambda _, h: h) == 0


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
def test_what_decides_a_mask(key: Callable[[Any, Any], Any], inputs: tuple[int, ...], by_keys: bool) -> None:
    def loss(p: Any, b: Any) -> Any:
        return jnp.square(dropped(key(p, b), b["x"] @ p["w"]) @ p["v"]).mean()

    trace = trace_loss(loss, PARAMS, BATCH)
    assert [leaf.name for leaf in trace.arguments] == ["v", "w", "key", "step", "x"]
    assert [each._replace(source=None) for each in drawn_masks(trace)] == [DrawnMask(None, inputs, by_keys)]


def test_a_constant_of_a_step_that_is_being_traced_is_the_same_at_each_and_what_it_computes_is_not() -> None:
    found: list[int] = []

    def step(params: Any, x: Any, key: Any) -> None:
        def of(key: Any) -> Callable[[Any, Any], Any]:
            return lambda p, b: jnp.square(dropped(key, x @ p["w"]) @ p["v"]).mean() + 0 * b

        keys = (GLOBAL, key, jax.random.fold_in(GLOBAL, key[0]))
        found.extend(len(repeated_masks(trace_loss(of(each), params, x[0, 0]))) for each in keys)

    jax.make_jaxpr(step)(PARAMS, BATCH["x"], jax.random.PRNGKey(0))
    assert found == [1, 0, 0]
