"""`pulled_back` computes the vector-Jacobian product of a single equation, by the equation's own backward rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradscope.tracing.jaxpr.derivatives.custom_rules import may_refuse
from gradscope.tracing.jaxpr.jaxcompat import Equation, bind, closed_over, sub_jaxprs


def pulled_back(
    equation: Equation, operands: Sequence[Any], chosen: Sequence[int], cotangents: Mapping[int, Any]
) -> list[Any]:
    """Returns the gradients that flow back through an equation to some of its operands.

    Args:
        equation: A differentiable equation.
        operands: The values of all of its operands.
        chosen: The operands requested, by position; of inexact dtype.
        cotangents: The gradients of outputs, by position, each of its output's shape and dtype. Nothing flows back
            from outputs that are left out.

    Returns:
        For each chosen operand a gradient of its shape and dtype.
    """
    found = pull_back_of(equation, operands, chosen, [*cotangents])
    gradients = dict(zip(found.operands, found.function(list(cotangents.values())), strict=True))
    return [gradients[position] for position in chosen]


class PullBack(NamedTuple):
    """A `PullBack` is what an equation's forward rule leaves for its backward rule.

    Attributes:
        function: The backward rule, a function of the gradients of outputs; a pytree of what the forward rule saved.
        operands: The positions of the operands whose gradients it returns.
    """

    function: Any
    operands: tuple[int, ...]


def pull_back_of(
    equation: Equation, operands: Sequence[Any], chosen: Sequence[int], outputs: Sequence[int]
) -> PullBack:
    """Returns the backward rule of an equation, for gradients of some of its outputs.

    Args:
        equation: A differentiable equation.
        operands: The values of all of its operands.
        chosen: The operands whose gradients are requested, by position; of inexact dtype.
        outputs: The outputs from which gradients flow back, by position.
    """
    # All operands that have a gradient and not the chosen ones only: JAX's rule for the padding value of `pad` fails
    # where the padded operand counts as constant (0.10). But a rule may refuse one that is constant in the program.
    inexact = [
        position
        for position in (chosen if _may_refuse(equation) else range(closed_over(equation), len(operands)))
        if jnp.issubdtype(jax.typeof(operands[position]).dtype, jnp.inexact)
    ]

    def made(*values: Any) -> list[Any]:
        replaced = dict(zip(inexact, values, strict=True))
        results = bind(equation, [replaced.get(position, operand) for position, operand in enumerate(operands)])
        return [results[position] for position in outputs]

    _, function = jax.vjp(made, *(operands[position] for position in inexact))
    return PullBack(function, tuple(inexact))


def _may_refuse(equation: Equation) -> bool:
    """Returns whether an equation has, or runs, a derivative rule that may refuse an operand."""
    inside = (each for sub in sub_jaxprs(equation) for each in sub.jaxpr.eqns)
    return may_refuse(equation) or any(map(_may_refuse, inside))
