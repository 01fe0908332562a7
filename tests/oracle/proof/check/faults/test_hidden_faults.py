"""A rule is checked near a point that hides what it does: biases of zeros, scales of ones, the identity as a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracle.proof.check.test_rules import proof, rule
from tests.support.data import evenly
from tests.support.sampled import sampled

X = evenly(-0.9, 1.1, 5, 3)
ZEROS, ONES, EYE = np.zeros((5, 3), np.float32), np.ones((5, 3), np.float32), np.eye(3, dtype=np.float32)


def loss_by(function: Callable[[Any, Any], Any], backward: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Any:
    """A loss of a function of inputs `x` and a parameter `p`, with a rule of its own."""

    @jax.custom_vjp
    def ruled(x: Any, p: Any) -> Any:
        return function(x, p)

    ruled.defvjp(lambda x, p: (function(x, p), (x, p)), lambda kept, g: backward(*kept, g))
    return lambda variables, inputs: jnp.sum(ruled(jnp.sin(inputs), variables["p"]) ** 2)


def scaled(power: int) -> Any:
    return loss_by(lambda x, p: x * p, lambda x, p, g: (g * p**power, g * x))


def product(of: Callable[[Any], Any]) -> Any:
    return loss_by(lambda x, p: x @ p, lambda x, p, g: (g @ of(p), x.T @ g))


def shifted(factor: float) -> Any:
    return loss_by(lambda x, p: x * jnp.exp(p), lambda x, p, g: (g * jnp.exp(factor * p), g * x * jnp.exp(p)))


def of_symmetric() -> Any:
    """The logarithm of the determinant of a matrix that is always symmetric, as its own rule takes for granted."""

    @jax.custom_vjp
    def ruled(s: Any) -> Any:
        return jnp.linalg.slogdet(s)[1]

    ruled.defvjp(lambda s: (ruled(s), s), lambda s, g: (g * jnp.linalg.inv(s),))
    return lambda variables, inputs: ruled(variables["p"] @ variables["p"].T) + inputs.sum()


def of_ones() -> Any:
    """A function that has a value near ones alone."""
    near = 0.05
    return loss_by(lambda x, p: jnp.where(jnp.abs(p - 1.0) < near, x * p, jnp.nan), lambda x, p, g: (g * p * p, g * x))


def behind_dead_units(power: int) -> Any:
    """A rule of values that are all zero, whatever the parameters are nearby."""
    return lambda variables, inputs: scaled(power)({"p": jax.nn.relu(variables["p"] - 10.0)}, inputs)


@sampled(
    ("loss", "value", "where"),
    [(scaled(2), ONES, "1"), (shifted(2.0), ZEROS, "0"), (product(lambda p: p), EYE, "0 or 1")],
    ids=["a square of ones", "an exponential of zeros", "the identity not transposed"],
)
def test_a_rule_that_is_right_at_the_first_parameters_alone_is_wrong(loss: Any, value: Any, where: str) -> None:
    found = proof(loss, {"p": value}, X)
    row = rule(found, "ruled")
    assert (row.status, row.why) == ("wrong", f"where p is not {where}; x: no multiple of the derivative")
    assert {each.status for each in found.gradients} == {"correct"}  # they are, at these parameters


@pytest.mark.slow
@sampled(
    ("loss", "value"),
    [(scaled(1), ONES), (shifted(1.0), ZEROS), (product(lambda p: p.T), EYE), (of_symmetric(), EYE)],
    ids=["ones", "zeros", "the identity", "a matrix that is always symmetric"],
)
def test_a_right_rule_is_correct_there(loss: Any, value: Any) -> None:
    assert {row.status for row in proof(loss, {"p": value}, X).rows} == {"correct"}


@pytest.mark.slow
def test_values_where_a_function_is_not_defined_are_no_fault() -> None:
    assert rule(proof(of_ones(), {"p": ONES}, X), "ruled").status == "correct"


def test_what_is_zero_wherever_a_rule_is_called_is_said() -> None:
    row = rule(proof(behind_dead_units(2), {"p": ZEROS}, X), "ruled")
    why = "p is zero at all its calls: what the rule does with other values is not checked"
    assert (row.status, row.why) == ("correct", why)
