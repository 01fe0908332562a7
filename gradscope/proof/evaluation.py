"""`evaluated_inside` evaluates what an equation runs by another evaluator than JAX's.

It serves evaluators that compute something else than the jaxpr's values, or change some of its equations: what they
have in common is how calls, loops and branches hand values on. Values may be pytrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from gradscope.tracing.jaxpr.jaxcompat import Equation, Jaxpr, kind_of, opened, scan_arity, sub_jaxprs

#: Returns the outputs of a jaxpr, given the values of its constants and of its variables.
Evaluator: TypeAlias = Callable[[Jaxpr, Sequence[Any], Sequence[Any]], list[Any]]


def evaluated_inside(
    equation: Equation,
    values: Sequence[Any],
    evaluate: Evaluator,
    *,
    index: Callable[[Any], Any] = lambda value: value,
    repetitions: int = 1,
) -> list[Any] | None:
    """Returns the outputs of a call, a checkpoint, a `scan` or a `cond`; None for any other equation.

    Args:
        equation: The equation.
        values: Its operands.
        evaluate: The evaluator of the jaxprs inside.
        index: Returns the number of the branch of a `cond`'s first operand.
        repetitions: What the number of iterations of a `scan` without sequences is multiplied by.
    """
    kind = kind_of(equation)
    if kind in ("call", "remat"):
        (inside,) = sub_jaxprs(equation)
        return evaluate(inside.jaxpr, inside.constants, values)
    if kind == "cond":
        branches = [_branch(*opened(branch), evaluate) for branch in equation.params["branches"]]
        return list(jax.lax.switch(index(values[0]), branches, list(values[1:])))
    return _scanned(equation, values, evaluate, repetitions) if kind == "scan" else None


def only_repeats(equation: Equation) -> bool:
    """Returns whether an equation is a loop that applies one function some number of times, as a `fori_loop`."""
    if kind_of(equation) != "scan":
        return False
    arity = scan_arity(equation)
    return len(equation.invars) == arity.constants + arity.carries and len(equation.outvars) == arity.carries


def _branch(jaxpr: Jaxpr, constants: Sequence[Any], evaluate: Evaluator) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda values: evaluate(jaxpr, constants, values)


def _scanned(equation: Equation, values: Sequence[Any], evaluate: Evaluator, repetitions: int) -> list[Any]:
    arity, (body,) = scan_arity(equation), sub_jaxprs(equation)
    first, sequences = arity.constants, arity.constants + arity.carries

    def step(carries: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        made = evaluate(body.jaxpr, body.constants, [*values[:first], *carries, *slices])
        return made[: arity.carries], made[arity.carries :]

    carries, stacked = jax.lax.scan(
        step,
        list(values[first:sequences]),
        list(values[sequences:]),
        length=equation.params["length"] * (repetitions if only_repeats(equation) else 1),
        reverse=equation.params["reverse"],
    )
    return [*carries, *stacked]
