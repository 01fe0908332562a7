"""A rule is checked where none of its operands is zero throughout, which would hide what it does with another one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.oracle.proof.check.test_rules import proof, rule
from tests.support.data import evenly
from tests.support.sampled import sampled

VARIABLES = {"w": evenly(-1.0, 1.5, 3, 3)}
INPUTS = evenly(-0.9, 1.1, 4, 2, 3)


def recurrent(factor: float, *, scanned: bool) -> Any:
    """A recurrent loss from a state of zeros, whose own rule multiplies the gradient of its kernel by a factor."""

    @jax.custom_vjp
    def cell(w: Any, state: Any, x: Any) -> Any:
        return jnp.tanh(state @ w + x)

    def forward(w: Any, state: Any, x: Any) -> tuple[Any, Any]:
        return (after := cell(w, state, x)), (w, state, after)

    def backward(kept: Any, g: Any) -> tuple[Any, Any, Any]:
        w, state, after = kept
        g = g * (1 - after * after)
        return factor * state.T @ g, g @ w.T, g

    cell.defvjp(forward, backward)

    def loss(variables: Any, inputs: Any) -> Any:
        state = jnp.zeros(inputs.shape[1:])
        if scanned:
            state, _ = lax.scan(lambda state, x: (cell(variables["w"], state, x), None), state, inputs)
        else:
            for x in inputs:
                state = cell(variables["w"], state, x)
        return jnp.sum(state**3)

    return loss


@pytest.mark.slow
@sampled("scanned", [True, False])
def test_a_rule_that_is_wrong_but_at_a_state_of_zeros_is_found(scanned: bool) -> None:
    row = rule(proof(recurrent(0.9, scanned=scanned), VARIABLES, INPUTS), "cell")
    assert (row.status, row.why) == ("wrong", "w (param/w): 0.9 times the derivative")


def test_a_right_rule_of_a_recurrence_is_correct() -> None:
    assert rule(proof(recurrent(1.0, scanned=True), VARIABLES, INPUTS), "cell").status == "correct"
