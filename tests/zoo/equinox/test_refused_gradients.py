"""`check` of a solver that refuses every gradient of its state, and zeros too, as those of Equinox' ecosystem do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.oracle.proof.check.test_rules import proof
from tests.support.data import evenly

equinox = pytest.importorskip("equinox")
internal = pytest.importorskip("equinox.internal")


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_rule_in_a_program_that_refuses_float64_and_gradients_of_its_state(factor: float) -> None:
    @jax.custom_jvp
    def solved(a: Any) -> Any:
        return jnp.sin(a), jnp.cos(a), jnp.argmax(a)

    @solved.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        root, state, steps = solved(*primals)
        zeros = jnp.zeros_like(state), jax.custom_derivatives.zero_from_primal(steps, symbolic_zeros=False)
        return (root, state, steps), (factor * state * tangents[0], *zeros)

    def loss(params: Any, x: Any) -> Any:
        if x.dtype != jnp.float32:
            raise TypeError("float32 alone")
        root, state, steps = solved(params["a"])
        state, steps = internal.nondifferentiable_backward((state, steps))
        root, state, steps = equinox.error_if((root, state, steps), steps < 0, "no root")
        return jnp.sum(root * x)

    found = proof(loss, {"a": evenly(0.2, 0.9, 3)}, evenly(-0.9, 1.1, 2, 3))
    assert found.verdict == ("correct" if factor == 1 else "wrong")
