"""`check` of functions with a rule that keep an operand constant inside: zeros for that are right, and others too."""

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
from tests.support.sampled import sampled

_PARAMS = {"slope": jnp.asarray(2.0), "side": jnp.asarray(0.7)}
_X = jnp.linspace(1.0, 2.0, 5)


def proof(loss: Callable[[Any, Any], Any]) -> Proof:
    return prove(Model.of_values("model", loss, _PARAMS, _X), Arguments.of(_PARAMS, _X), Timings())


def _root(slope: Any, side: Any) -> Any:
    def solve(f: Callable[[Any], Any], start: Any) -> Any:
        return lax.fori_loop(0, 60, lambda _, y: y - f(y) / (3.0 * y**2 + 2.0), start)

    def zero(y: Any) -> Any:
        return y**3 + slope * y - lax.stop_gradient(side)

    return lax.custom_root(zero, jnp.ones_like(side), solve, lambda linear, y: y / linear(jnp.ones_like(y)))


def test_what_the_function_of_a_root_keeps_constant_has_no_gradient() -> None:
    found = proof(lambda params, x: jnp.mean(jax.vmap(_root, (None, 0))(params["slope"], x * params["side"]) ** 2))
    assert found.verdict == "correct"
    assert len(found.stopped) == 1


@pytest.mark.slow
def test_the_rule_of_a_root_is_where_the_root_is_called() -> None:
    found = proof(lambda params, x: _root(params["slope"], x * params["side"]).sum())
    (row,) = found.rules
    assert str(row.source).startswith("test_stopped_operands.py:")


_scaled = jax.custom_vjp(lambda x, factor: jnp.sin(x) * lax.stop_gradient(factor))
_doubled = jax.custom_vjp(lambda x, factor: jnp.sin(x) * lax.stop_gradient(factor))
_full = jax.custom_vjp(lambda x, factor: jnp.sin(x) * lax.stop_gradient(factor))
_unstopped = jax.custom_vjp(lambda x, factor: jnp.sin(x) * factor)


def _saving(function: Any) -> Callable[..., Any]:
    return lambda x, factor: (function(x, factor), (x, factor))


def _along(saved: Any, gradient: Any, times: float = 1.0) -> Any:
    return times * gradient * jnp.cos(saved[0]) * saved[1]


_scaled.defvjp(_saving(_scaled), lambda saved, d: (_along(saved, d), jnp.zeros(())))
_doubled.defvjp(_saving(_doubled), lambda saved, d: (_along(saved, d, 2.0), jnp.zeros(())))
_full.defvjp(_saving(_full), lambda saved, d: (_along(saved, d), (d * jnp.sin(saved[0])).sum()))
_twice = jax.custom_vjp(jnp.sin)
_twice.defvjp(lambda x: (jnp.sin(x), x), lambda x, d: (2.0 * d * jnp.cos(x),))
_unstopped.defvjp(_saving(_unstopped), lambda saved, d: (_along(saved, d), jnp.zeros(())))


@pytest.mark.slow
@sampled(
    ("function", "verdict"), [(_scaled, "correct"), (_doubled, "wrong"), (_full, "correct"), (_unstopped, "wrong")]
)
def test_zeros_are_right_for_what_a_function_stops_and_for_nothing_else(function: Any, verdict: str) -> None:
    found = proof(lambda params, x: jnp.mean(function(x * params["slope"], params["side"]) ** 2))
    assert found.verdict == verdict


@pytest.mark.slow
def test_a_straight_through_estimator_may_round_a_number_to_the_kink_behind_it() -> None:
    def on_a_grid(of_kink: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def loss(params: Any, x: Any) -> Any:
            value = params["slope"] * (x - 1.5)
            rounded = value + lax.stop_gradient(jnp.round(value) - value)
            return ((of_kink(rounded) * jnp.asarray([1.0, -2.0, 3.0, -1.0, 0.5]) - params["side"]) ** 2).sum()

        return loss

    for of_kink in (jax.nn.relu, jnp.abs):
        found = proof(on_a_grid(of_kink))
        assert found.verdict == "correct"
        assert {row.status for row in found.gradients} <= {"correct", "not smooth here"}
    wrong = proof(on_a_grid(lambda value: _twice(jnp.abs(value))))
    assert {row.what: row.status for row in wrong.gradients}["param_grad/slope"] == "wrong"
