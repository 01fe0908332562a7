"""`check` tells that a custom rule returns another value than its function, of which the derivative may be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.proving import ProofOptions, ProofRow, prove
from gradscope.proof.rules.faults.returned_values import RulePrograms, wrong_value
from gradscope.tracing.loading.model import Model
from tests.support.data import evenly
from tests.support.sampled import sampled

W = evenly(-1.0, 1.5, 3, 4)
X = evenly(-0.9, 1.1, 2, 3)


def rule_of(function: Callable[[Any], Any], *, allowed: tuple[str, ...] = ()) -> ProofRow:
    """Returns the row of the one rule of a loss that applies a function to hidden units."""

    def loss(w: Any, x: Any) -> Any:
        return (function(x @ w) ** 2).sum()

    found = prove(Model.of_values("model", loss, W, X), Arguments.of(W, X), Timings(), ProofOptions(allowed=allowed))
    (row,) = found.rules
    return row


def with_rule(function: Callable[[Any], Any], forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function whose rule returns another function's value, and the right derivative."""

    @jax.custom_vjp
    def ruled(x: Any) -> Any:
        return function(x)

    ruled.defvjp(lambda x: (forward(x), x), lambda x, g: jax.vjp(function, x)[1](g))
    return ruled


@pytest.mark.slow
def test_a_multiple_of_the_value_is_told() -> None:
    row = rule_of(with_rule(jnp.tanh, lambda x: 1.01 * jnp.tanh(x)))
    assert (row.status, row.why, row.arguments) == ("wrong", "returns 1.01 times the function's value", ())


@pytest.mark.slow
def test_another_value_is_told() -> None:
    row = rule_of(with_rule(jax.nn.gelu, lambda x: jax.nn.gelu(x, approximate=False)))
    assert (row.status, row.why) == ("wrong", "returns another value than the function")


@pytest.mark.slow
def test_the_value_of_a_custom_jvp_is_told_before_its_wrong_argument() -> None:
    @jax.custom_jvp
    def doubled(x: Any) -> Any:
        return jnp.sin(x)

    doubled.defjvp(lambda primals, tangents: (2 * jnp.sin(primals[0]), 2 * jnp.cos(primals[0]) * tangents[0]))
    row = rule_of(doubled)
    assert row.why == "returns 2 times the function's value; x: 2 times the derivative"


def test_a_gradient_that_no_wrong_rule_makes_is_said_to_be_made_with_its_wrong_value() -> None:
    ruled = with_rule(jnp.tanh, lambda x: 2 * jnp.tanh(x))

    def loss(parameters: Any, x: Any) -> Any:
        return ((ruled(x @ parameters["w"]) @ parameters["v"]) ** 2).sum()

    parameters = {"w": W, "v": evenly(-0.8, 1.2, 4, 2)}
    model = Model.of_values("model", loss, parameters, X)
    found = prove(model, Arguments.of(parameters, X), Timings(), ProofOptions(allowed=()))
    why = {row.what: row.why for row in found.gradients}
    assert why["param_grad/v"] == "4 times the derivative; made with the wrong value that the rule of ruled returns"
    assert why["param_grad/w"] == "2 times the derivative; made through the wrong rule of ruled"


def test_an_allowed_function_may_return_another_value() -> None:
    row = rule_of(with_rule(jnp.tanh, lambda x: x), allowed=("ruled",))
    assert (row.status, row.why) == ("excused", "allowed; returns another value than the function")


def one_pass(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt((x * x).mean(-1, keepdims=True) - mean * mean + 1e-5)


def two_passes(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


@pytest.mark.slow
@sampled(
    ("function", "forward"),
    [
        (two_passes, one_pass),
        (lambda x: two_passes(x + 1e3), lambda x: one_pass(x + 1e3)),  # rounding that cancels
        (lambda x: jnp.where(x > 0, x, -jnp.inf).max(-1), lambda x: jnp.where(x > 0, x, -1e30).max(-1)),
        (lambda x: jnp.tanh(x.astype(jnp.bfloat16)), lambda x: lax.tanh(x.astype(jnp.bfloat16) * 2 / 2)),
    ],
)
def test_another_way_to_the_value_is_right(function: Callable[[Any], Any], forward: Callable[[Any], Any]) -> None:
    assert rule_of(with_rule(function, forward)).status != "wrong"


def test_values_of_which_rounding_alone_is_left_are_not_held_against_each_other() -> None:
    ruled = with_rule(lambda x: (x - x.mean()).sum(), lambda x: x.sum() - x.mean() * x.size)
    programs = RulePrograms(lambda here: [ruled(*here)], jax.jit)
    here = [jnp.linspace(0.1, 0.7, 1000)]
    assert programs.outputs(here) != programs.values(here)
    assert wrong_value([programs], here, 1e-6) is None


@pytest.mark.slow
def test_what_the_loss_does_not_use_does_not_count() -> None:
    @jax.custom_vjp
    def pair(x: Any) -> Any:
        return jnp.sin(x), jnp.cos(x)

    def backward(x: Any, g: Any) -> Any:
        return (g[0] * jnp.cos(x) - g[1] * jnp.sin(x),)

    pair.defvjp(lambda x: ((jnp.sin(x), 2 * jnp.cos(x)), x), backward)
    assert rule_of(lambda x: pair(x)[0]).status == "correct"
    assert rule_of(lambda x: sum(pair(x))).why == "returns another value than the function"
