"""`check` of solvers that `vmap` batches, in programs of float32 alone: each example has a condition of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.oracle.proof.check.test_rules import proof, rule
from tests.support.data import evenly
from tests.support.sampled import sampled

VARIABLES = {"a": evenly(0.2, 0.9, 4)}
INPUTS = evenly(-0.9, 1.1, 2, 4)


def loss_by(factor: float) -> Any:
    """A loss of fixed points to few digits, whose own rule has a factor, in float32 alone."""

    @jax.custom_vjp
    def fixed(a: Any) -> Any:
        tolerance = jnp.sqrt(jnp.float32(1e-6))

        def goes_on(state: Any) -> Any:
            return state[1] > tolerance

        # The type of what is not stated is that of a program without types of 64 bits.
        def step(state: Any) -> Any:
            after = jnp.cos(a * state[0])
            return after, jnp.abs(after - state[0])

        return lax.while_loop(goes_on, step, (jnp.full(a.shape, 0.5, jnp.float32), jnp.array(1.0)))[0]

    def backward(kept: Any, g: Any) -> Any:
        a, y = kept
        slope = jnp.sin(a * y)
        return (-factor * g * slope * y / (1 + a * slope),)

    fixed.defvjp(lambda a: (y := fixed(a), (a, y)), backward)
    return lambda params, x: jnp.sum(jax.vmap(fixed)(params["a"]) * x.sum(axis=0))


@sampled(("factor", "status"), [(1.0, "correct"), (1.5, "wrong")])
def test_a_rule_is_as_exact_as_its_batched_solver(factor: float, status: str) -> None:
    found = proof(loss_by(factor), VARIABLES, INPUTS)
    assert "does not run in float64" in found.notes[0]
    assert (rule(found, "fixed").status, found.verdict) == (status, status)


@pytest.mark.slow
def test_differences_of_a_bisection_that_ends_by_itself_show_nothing() -> None:
    """The body of its loop tells that it is done, so that it cannot go on; its steps may only be held to less."""

    @jax.custom_vjp
    def halved(a: Any) -> Any:
        def halve(state: Any) -> Any:
            low, high, done = state
            middle = (low + high) / 2
            above = middle**3 + middle > a
            low, high = jnp.where(done | above, low, middle), jnp.where(done | ~above, high, middle)
            return low, high, high - low < 1e-4

        low, high, _ = lax.while_loop(
            lambda state: ~state[2], halve, (jnp.full_like(a, -2.0), jnp.full_like(a, 1.0), False)
        )
        return (low + high) / 2

    halved.defvjp(lambda a: (y := halved(a), y), lambda y, g: (g / (3 * y * y + 1),))
    found = proof(lambda params, x: jnp.sum(jax.vmap(halved)(jnp.sin(params["a"])) * x.sum(axis=0)), VARIABLES, INPUTS)
    assert "wrong" not in {row.status for row in found.rows}
