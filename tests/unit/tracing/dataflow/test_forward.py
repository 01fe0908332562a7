"""What is made from a value, step by step and through every frame; and whose rules equations go by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.derivatives.custom_rules import CustomRule, custom_rule
from gradscope.tracing.jaxpr.frames import OPERAND
from gradscope.tracing.tracer import Trace, trace_loss
from tests.support.data import filled

X = filled(1.0, 3)


def traced(function: Callable[[Any, Any], Any]) -> Trace:
    return trace_loss(lambda w, x: function(w, x).sum(), X, X)


def made_from_w(function: Callable[[Any, Any], Any]) -> set[str]:
    """Primitives of the equations, of any frame, that make something of the parameter."""
    root = traced(function).root
    reached = ForwardFlow().closure([FrameVariable(root, root.jaxpr.invars[0])])
    makers = ((place.frame, place.frame.definitions[place.atom][0]) for place in reached)
    return {frame.jaxpr.eqns[number].primitive.name for frame, number in makers if number != OPERAND}


def carried(w: Any, x: Any) -> Any:
    def step(carry: Any, _: None) -> Any:
        first, second, third = carry
        return (jnp.cos(second), jnp.sin(first), jnp.tan(third)), None

    return lax.scan(step, (w, x, x), None, length=3)[0][0]


def looped(w: Any, x: Any) -> Any:
    return lax.while_loop(lambda c: c[0][0] < 9.0, lambda c: (c[0] + 1.0, jnp.tanh(c[1])), (w, x))[1]


@pytest.mark.parametrize(
    ("function", "makers"),
    [
        (lambda w, x: jnp.sin(w) + jnp.cos(x), {"sin", "add", "reduce_sum"}),
        (lambda w, x: jax.jit(lambda a, b: (jnp.sin(a), jnp.cos(b)))(w, x)[1], {"jit", "sin"}),
        (lambda w, x: jax.checkpoint(lambda a: jnp.sin(a) * x)(w), {"checkpoint", "sin", "mul", "reduce_sum"}),
        (lambda w, x: lax.scan(lambda c, row: (c + row, jnp.cos(c)), x[0], w)[1], {"scan", "add", "cos", "reduce_sum"}),
        (carried, {"scan", "sin", "cos", "reduce_sum"}),
        (lambda w, x: lax.cond(x[0] > 0.0, jnp.sin, jnp.cos, w), {"cond", "sin", "cos", "reduce_sum"}),
        (looped, {"while", "add", "reduce_sum"}),
    ],
)
def test_all_that_is_made_from_a_value_is_found_and_nothing_else(
    function: Callable[[Any, Any], Any], makers: set[str]
) -> None:
    names = {name.replace("remat2", "checkpoint").replace("pjit", "jit") for name in made_from_w(function)}
    assert names == makers


def test_a_choice_makes_what_it_chooses() -> None:
    found = made_from_w(lambda w, x: lax.cond(w[0] > 0.0, jnp.sin, jnp.cos, x))
    assert {"gt", "cond", "reduce_sum"} <= found
    assert not {"sin", "cos"} & found


@jax.custom_jvp
def mine(x: Any) -> Any:
    return x * 2.0


mine.defjvp(lambda primals, tangents: (mine(*primals), 2.0 * tangents[0]))


def test_a_rule_goes_by_the_name_and_the_line_of_its_function() -> None:
    root = traced(lambda w, x: jax.nn.relu(mine(w))).root
    rules = [rule for equation in root.jaxpr.eqns if (rule := custom_rule(equation)) is not None]
    line = mine.fun.__code__.co_firstlineno
    assert rules[0] == CustomRule(function="mine", source=f"test_forward.py:{line}", of_library=False, of_jax=False)
    assert (rules[1].function, rules[1].of_library) == ("relu", True)
