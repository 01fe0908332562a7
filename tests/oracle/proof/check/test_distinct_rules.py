"""`check` of rules that one function makes, which differ by what they close over: each has a row of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gradscope.proof.rules.distinct_rules import distinct_rules
from gradscope.proof.rules.rule_calls import custom_rule_calls
from gradscope.tracing.tracer import trace_loss
from tests.oracle.proof.check.test_rules import W, X, proof

Function = Callable[[Any], Any]


def closure(factor: float) -> Any:
    """A sine whose rule is this multiple of the derivative."""

    @jax.custom_vjp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (factor * g * jnp.cos(x),))
    return sine


def array_closure(factor: float) -> Any:
    """Likewise, where the factor is one of so many numbers that their text leaves it out."""
    factors = np.ones(2000, np.float32)
    factors[1000] = factor

    @jax.custom_vjp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.asarray(factors)[1000] * g * jnp.cos(x),))
    return sine


def forward_closure(factor: float) -> Any:
    """Likewise, where only the forward function closes over the factor."""

    @jax.custom_vjp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), factor * jnp.cos(x)), lambda slope, g: (g * slope,))
    return sine


def of_tangents(factor: float) -> Any:
    @jax.custom_jvp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    @sine.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return jnp.sin(primals[0]), factor * jnp.cos(primals[0]) * tangents[0]

    return sine


def _sine(factor: float, x: Any) -> Any:
    return jnp.sin(x)


def _forward(factor: float, x: Any) -> Any:
    return jnp.sin(x), x


def _backward(factor: float, x: Any, g: Any) -> Any:
    return (factor * g * jnp.cos(x),)


def of_partial(factor: float) -> Any:
    made = jax.custom_vjp(partial(_sine, factor))
    made.defvjp(partial(_forward, factor), partial(_backward, factor))
    return made


class Sine:
    """A layer with a rule among its methods."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self.made: Any = jax.custom_vjp(self.run)
        self.made.defvjp(lambda x: (self.run(x), x), self.backward)

    def run(self, x: Any) -> Any:
        return jnp.sin(x)

    def backward(self, x: Any, g: Any) -> Any:
        return (self._factor * g * jnp.cos(x),)


static_sine: Any = jax.custom_vjp(_sine, nondiff_argnums=(0,))
static_sine.defvjp(_forward, _backward)

MAKERS: dict[str, Callable[[float], Function]] = {
    "closure": closure,
    "closure over an array": array_closure,
    "closure of the forward function": forward_closure,
    "rule of tangents": of_tangents,
    "partial": of_partial,
    "method": lambda factor: Sine(factor).made,
    "static argument": lambda factor: lambda x: static_sine(factor, x),
}
AROUND: dict[str, Callable[[Function], Function]] = {
    "jit": jax.jit,
    "checkpoint of vmap": lambda f: jax.checkpoint(jax.vmap(f)),
    "scan": lambda f: lambda x: lax.scan(lambda carry, row: (carry, f(row)), 0.0, x)[1],
    "branch": lambda f: lambda x: lax.cond(x[0, 0] < 100.0, f, jnp.cos, x),
}


def uses(layer: Callable[[int], Function], layers: int = 4) -> list[int]:
    """How many calls each rule of a network has."""

    def loss(w: Any, x: Any) -> Any:
        h = x @ w
        for number in range(layers):
            h = layer(number)(h)
        return h.sum()

    return [rule.uses for rule in distinct_rules(list(custom_rule_calls(trace_loss(loss, W, X))))]


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_rules_of_one_function_are_distinct_where_they_close_over_different_values(make: Callable[..., Any]) -> None:
    assert uses(lambda number: make(2.0 if number == 2 else 1.0)) == [3, 1]


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_rules_are_distinct_inside_transformations(around: Callable[[Function], Function]) -> None:
    assert uses(lambda number: around(closure(2.0 if number == 2 else 1.0))) == [3, 1]


@pytest.mark.slow
def test_equal_rules_are_one_in_a_deep_network() -> None:
    made = closure(1.0)
    assert uses(lambda _: made, 50) == uses(lambda _: closure(1.0), 50) == [50]


@pytest.mark.slow
@pytest.mark.parametrize("make", [closure, of_tangents])
def test_the_wrong_one_of_two_rules_is_named_with_its_line_and_factor(make: Callable[[float], Any]) -> None:
    right, wrong = make(1.0), make(2.0)

    def loss(w: Any, x: Any) -> Any:
        return right(wrong(right(x @ w))).sum() + right(w).sum()

    found = proof(loss).rules
    line = loss.__code__.co_firstlineno + 1
    assert [(row.what, row.status, row.factor) for row in found] == [
        (
            f"custom rule of sine, used at test_distinct_rules.py:{line} (call 1 there) and in 1 more call",
            "correct",
            None,
        ),
        (f"custom rule of sine, used at test_distinct_rules.py:{line} (call 2 there)", "wrong", 2.0),
        (f"custom rule of sine, used at test_distinct_rules.py:{line} (call 4 there)", "correct", None),
    ]
    assert found[1].why == f"{found[1].arguments[0]}: 2 times the derivative"


@jax.custom_vjp
def sine_and_cosine(x: Any) -> Any:
    return jnp.sin(x), jnp.cos(x)


sine_and_cosine.defvjp(lambda x: (sine_and_cosine(x), x), lambda x, g: (g[0] * jnp.cos(x) + g[1] * jnp.sin(x),))


@pytest.mark.slow
def test_each_output_that_a_loss_differentiates_is_checked() -> None:
    found = proof(lambda w, x: sine_and_cosine(x @ w)[0].sum() + sine_and_cosine(x @ w)[1].sum())
    assert [(row.status, row.factor) for row in found.rules] == [("correct", None), ("wrong", -1.0)]


def test_a_rule_is_checked_in_the_first_iteration_that_calls_it() -> None:
    wrong = closure(2.0)

    def step(h: Any, number: Any) -> tuple[Any, None]:
        return lax.cond(number == 1, lambda h: wrong(0.9 * h), jnp.cos, h), None

    found = proof(lambda w, x: lax.scan(step, x @ w, jnp.arange(3))[0].sum())
    assert [(row.status, row.factor) for row in found.rules] == [("wrong", 2.0)]
