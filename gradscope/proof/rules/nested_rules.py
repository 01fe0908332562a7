"""A function with a rule may call others that have rules, and its own rule may differentiate them.

Then a wrong rule inside makes the outer one wrong, whatever its own lines say. The loss only sees the outer function:
so that function is taken without its rule, as a loss of its own whose rules can be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradscope.proof.directions import Directions
from gradscope.proof.rules.on_devices import on_devices
from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.derivatives.custom_rules import carried_function, custom_rule, stated_rule
from gradscope.tracing.jaxpr.jaxcompat import run_closed
from gradscope.tracing.tracer import Trace, trace_loss


class FunctionAsLoss(NamedTuple):
    """A `FunctionAsLoss` is a function with a rule, traced without it as a loss, and the flat arguments of that."""

    trace: Trace
    arguments: list[Any]


def function_as_loss(call: CustomRuleCall, operands: Sequence[Any], directions: Directions) -> FunctionAsLoss | None:
    """Returns the function of a call without its rule as a loss, traced, and its flat arguments.

    The loss is a sum of the outputs with random weights, and its arguments are the operands that can be differentiated.

    Args:
        call: The call.
        operands: Its operands.
        directions: The source of the weights.

    Returns:
        None where the function calls no other one with a rule.
    """
    equation = call.equation
    nested = (stated_rule(each) for frame in call.frames_inside() for each in frame.jaxpr.eqns)
    if custom_rule(equation) is None or not any(nested):
        return None
    function = carried_function(equation)
    moved = {str(at): operands[at] for at, atom in enumerate(equation.invars) if is_inexact(atom)}
    outputs = [at for at in call.outputs if is_inexact(equation.outvars[at])]
    shapes = [equation.outvars[at].aval for at in outputs]
    weights = directions.along([jnp.ones(each.shape, each.dtype) for each in shapes])

    def run(values: Sequence[Any]) -> list[Any]:
        return run_closed(function, *values)

    def loss(variables: Mapping[str, Any], _: Any) -> Any:
        # Copied, the operands are none of the arguments, which have names of the user's in a loss.
        values = [jnp.copy(variables[str(at)]) if str(at) in variables else each for at, each in enumerate(operands)]
        made = run(values) if call.typed_split is None else on_devices(call.typed_split, equation, values, run)
        terms = (jnp.real((made[at] * weight).sum()) for at, weight in zip(outputs, weights, strict=True))
        return sum(term.astype(float) for term in terms)  # outputs may have several types

    return FunctionAsLoss(trace_loss(loss, moved, {}), jax.tree_util.tree_leaves(moved))
