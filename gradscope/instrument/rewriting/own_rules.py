"""Own rules: how the interpreter runs equations that gradients go around, by a derivative rule of the equation itself.

What is inside them is observed and never differentiated, fed or stopped.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradscope.instrument.rewriting.interpreter import Context, interpret
from gradscope.instrument.rewriting.observed_values import Captured
from gradscope.tracing.jaxpr.jaxcompat import Equation, bind, run_closed, sub_jaxprs, traced_as
from gradscope.tracing.jaxpr.transfers import solve_operands


def linear_solve_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a linear solve with implicit derivatives; observations are auxiliary data of its solver."""
    inside = context.enter(number)
    sub, functions, operands = sub_jaxprs(equation)[0], equation.params["jaxprs"], solve_operands(equation, values)
    solution = len(operands.right)
    observed: list[Any] = []

    def solve(_matvec: Any, right: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        outputs, captured = interpret(inside, sub.jaxpr, sub.constants, [*operands.solve, *right])
        auxiliary = (outputs[solution:], captured)
        observed.append(jax.tree_util.tree_map(jax.typeof, auxiliary))
        return outputs[:solution], auxiliary

    def transpose_solve(_vecmat: Any, right: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        outputs = run_closed(functions.transpose_solve, *operands.transpose_solve, *right)
        # JAX drops the auxiliary data of this solver, but expects the pytree of the other, which it has traced by then.
        return outputs[:solution], jax.tree_util.tree_map(lambda each: jnp.zeros(each.shape, each.dtype), observed[0])

    with traced_as(equation):
        found, (auxiliary, captured) = jax.lax.custom_linear_solve(
            lambda vector: run_closed(functions.matvec, *operands.matvec, *vector),
            list(operands.right),
            solve,
            None if functions.transpose_solve is None else transpose_solve,
            symmetric=_is_symmetric(equation),
            has_aux=True,
        )
    return [*found, *auxiliary], captured


def custom_rule_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a function with a derivative rule as it is, and its function once more where something in it is observed."""
    inside, captured = context.enter(number), Captured.nothing()
    if inside.inside:
        with traced_as(equation):
            sub = sub_jaxprs(equation)[0]
            _, captured = interpret(inside, sub.jaxpr, sub.constants, jax.lax.stop_gradient(list(values)))
    return bind(equation, values), captured


def _is_symmetric(equation: Equation) -> bool:
    """Returns whether a linear solve's map is its own transpose, as `symmetric=True` states.

    JAX must not be asked to transpose such a map again: it may be a callback, or have a derivative rule of its own.
    """
    functions, operands = equation.params["jaxprs"], solve_operands(equation, equation.invars)
    if len(operands.matvec) != len(operands.vecmat) or any(map(operator.is_not, operands.matvec, operands.vecmat)):
        return False
    # Under `vmap` the two are batched one after the other, into equal functions and not into one.
    return functions.matvec is functions.vecmat or str(functions.matvec) == str(functions.vecmat)
