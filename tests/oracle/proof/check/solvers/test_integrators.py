"""`check` of an adjoint by an integrator with fixed steps: a small error may be that of the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.proving import Proof, prove
from gradscope.tracing.loading.model import Model

STEPS = 20
W = 0.5 * jax.random.normal(jax.random.key(0), (3, 3))
X = jax.random.normal(jax.random.key(1), (3,))


def counted(step: Callable[[Any, Any], Any], start: Any) -> Any:
    return lax.fori_loop(0, STEPS, step, start)


def until_the_end(step: Callable[[Any, Any], Any], start: Any) -> Any:
    move = lambda state: (state[0] + 1, step(*state))  # noqa: E731
    return lax.while_loop(lambda state: state[0] < STEPS, move, (0, start))[1]


def proof(loop: Callable[..., Any], factor: float) -> Proof:
    """Returns the proof of a loss of an integrator whose adjoint goes back in time, times a factor for the weights."""

    def field(w: Any, t: Any, y: Any) -> Any:
        return jnp.tanh(w @ y) * jnp.cos(t)

    def integrated(slope: Callable[[Any, Any], Any], start: Any, begin: float, h: float) -> Any:
        def along(y: Any, k: Any, part: float) -> Any:
            return jax.tree.map(lambda a, b: a + part * h * b, y, k)

        def step(number: Any, y: Any) -> Any:
            t = begin + number * h
            middle = slope(t + h / 2, along(y, slope(t, y), 0.5))
            return along(y, middle, 1.0)

        return loop(step, start)

    @jax.custom_vjp
    def solution(w: Any, y: Any) -> Any:
        return integrated(lambda t, y: field(w, t, y), y, 0.0, 1.0 / STEPS)

    def backward(kept: Any, cotangent: Any) -> Any:
        w, end = kept

        def slope(t: Any, state: Any) -> Any:
            moved, pull = jax.vjp(lambda w, y: field(w, t, y), w, state[0])
            of_w, of_y = pull(-state[1])
            return moved, of_y, of_w

        _, of_y, of_w = integrated(slope, (end, cotangent, jnp.zeros_like(w)), 1.0, -1.0 / STEPS)
        return factor * of_w, of_y

    solution.defvjp(lambda w, y: (solution(w, y), (w, solution(w, y))), backward)
    loss = lambda w, x: jnp.square(solution(w, x)).sum()  # noqa: E731
    return prove(Model.of_values("model", loss, W, X), Arguments.of(W, X), Timings())


@pytest.mark.slow
@pytest.mark.parametrize("loop", [counted, pytest.param(until_the_end, marks=pytest.mark.slow)])
def test_the_error_of_fixed_steps_makes_no_adjoint_wrong(loop: Callable[..., Any]) -> None:
    (rule,) = proof(loop, 1.0).rules
    assert rule.status == "not checked"
    assert rule.error is not None
    assert 1e-6 < rule.error < 1e-3  # more than that of differences
    assert "smaller tolerance or step" in str(rule.why)


def test_a_wrong_factor_is_wrong_whatever_the_steps_do() -> None:
    wrong = proof(counted, 1.3)
    assert wrong.verdict == "wrong"
    (argument,) = wrong.rules[0].arguments
    assert argument.startswith("w ")
