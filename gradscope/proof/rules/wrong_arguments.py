"""`wrong_arguments` names the arguments for which a custom rule is wrong, and by which factor.

A rule often differs from the derivative by one number: a sum in the place of a mean, a sign, a two. The number says
most where it is the length of an axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from gradscope import naming
from gradscope.proof.claims import Outcome, common_factor, rounded_factor
from gradscope.proof.directions import DIRECTIONS
from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.tracing.jaxpr.custom_rules import argument_names
from gradscope.tracing.jaxpr.frames import OPERAND, resolve
from gradscope.tracing.jaxpr.jaxcompat import Equation, closed_over
from gradscope.tracing.tracer import Trace

#: Lengths below this one are factors that many mistakes have.
_SHORTEST: Final = 3
#: The relative distance within which a factor is a length.
_IS_LENGTH: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongArgument:
    """WrongArgument is an argument for which a rule returns something else than the derivative.

    Attributes:
        name: Its name in the function, or its number, and the loss's argument that it is, if it is one.
        factor: What the rule returns as a multiple of the derivative; None where it is no multiple.
        length: The axis that has the factor, or its inverse, as its length; "" where there is none.
    """

    name: str
    factor: float | None
    length: str = ""

    def __str__(self) -> str:
        if self.factor is None:
            return f"{self.name}: no multiple of the derivative"
        length = f", {self.length}" if self.length else ""
        return f"{self.name}: {self.factor:.12g} times the derivative{length}"


def wrong_arguments(trace: Trace, call: CustomRuleCall, of_one: Callable[[int], Outcome]) -> tuple[WrongArgument, ...]:
    """Returns the arguments of a call for which its rule is wrong.

    Args:
        trace: The traced loss.
        call: The call.
        of_one: Returns the outcome along a random direction of one distinct variable.
    """
    found: list[WrongArgument] = []
    for variable, (position, *_) in enumerate(call.variables):
        outcomes = [of_one(variable) for _ in range(DIRECTIONS)]
        if any(each.status == "wrong" for each in outcomes):
            factor = common_factor(outcomes)
            known = not math.isnan(factor)
            found.append(
                WrongArgument(
                    name=_name(trace, call, position),
                    factor=rounded_factor(factor) if known else None,
                    length=_length(call.equation, position, factor) if known else "",
                )
            )
    return tuple(found)


def _name(trace: Trace, call: CustomRuleCall, position: int) -> str:
    equation = call.equation
    key = resolve(call.frame, equation.invars[position])
    of_loss = None if key is None or key.frame or key.equation != OPERAND else trace.arguments[key.position]
    name = argument_names(equation).get(position) or f"argument {position - closed_over(equation) + 1}"
    return name if of_loss is None else f"{name} ({naming.key_of(of_loss.family, of_loss.name)})"


def _length(equation: Equation, position: int, factor: float) -> str:
    """Returns which axis of an argument, or else of another, has a factor or its inverse as its length."""
    if factor == 0:
        return ""
    number = max(abs(factor), 1 / abs(factor))
    own = equation.invars[position]
    others = [atom for at, atom in enumerate(equation.invars) if at != position]
    for whose, atoms in (("its", [own]), ("another argument's", others), ("the output's", equation.outvars)):
        for atom in atoms:
            for length, what in _lengths(atom):
                if length >= _SHORTEST and abs(number - length) <= _IS_LENGTH * length:
                    return f"{'' if abs(factor) > 1 else '1 over '}{what.format(whose)}"
    return ""


def _lengths(atom: Any) -> Iterator[tuple[int, str]]:
    shape = getattr(atom.aval, "shape", ())
    yield from ((length, f"the length of {{}} axis {axis}") for axis, length in enumerate(shape))
    yield math.prod(shape), "{} number of elements"
