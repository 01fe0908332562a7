"""`wrong_arguments` names the arguments for which a custom rule is wrong, and how.

A rule often differs from the derivative by one number: a sum in the place of a mean, a sign, a two. The number says
most where it is the length of an axis, or the root of one. Or it returns the derivative with respect to another
argument, or something where the derivative is zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from gradscope import naming
from gradscope.proof.claims import NotFinite, Outcome
from gradscope.proof.directions import DIRECTIONS
from gradscope.proof.float64 import NarrowType
from gradscope.proof.rules.faults.wrong_factors import (
    ComplexFactor,
    RuleOfComplex,
    complex_factor,
    confirmed_factor,
    rounded_factor,
)
from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.tracing.jaxpr.derivatives.custom_rules import argument_name
from gradscope.tracing.jaxpr.frames import OPERAND, resolve
from gradscope.tracing.jaxpr.jaxcompat import Equation
from gradscope.tracing.tracer import Trace

#: Lengths below this one are factors that many mistakes have.
_SHORTEST: Final = 3
#: An error of up to so many roundings may be one of rounding.
_ROUNDINGS: Final = 4
#: The relative distance within which a factor is a length.
_IS_LENGTH: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongArgument:
    """WrongArgument is an argument for which a rule returns something else than the derivative.

    Attributes:
        name: Its name in the function, or its number, and the loss's argument that it is, if it is one.
        factor: What the rule returns as a multiple of the derivative; None where it is no multiple.
        length: The axis that has the factor, its square, or the inverse of one, as its length; "" where there is none.
        derivative_of: The name of another argument, the derivative with respect to which it is; "" where there is none.
        constant: Whether the derivative is zero: the function does not change with the argument, or jumps.
        returned: Whether the function returns the argument as it is.
        where: Of which elements alone this is so: " where it is negative"; "" for all.
        narrow: The narrow type that the rule computes in, whose rounding may be the error; None where it may not.
        not_finite: What the rule returns, if it is no finite number.
        turned: The complex number by which the rule is wrong; None where it is wrong by none.
    """

    name: str
    factor: float | None
    length: str = ""
    derivative_of: str = ""
    constant: bool = False
    returned: bool = False
    where: str = ""
    narrow: NarrowType | None = None
    not_finite: NotFinite = ""
    turned: ComplexFactor | None = None

    def __str__(self) -> str:
        if self.not_finite:
            return f"{self.name}: {self.not_finite}, as the derivative is not"
        if self.derivative_of:
            return f"{self.name}: the derivative with respect to {self.derivative_of}"
        if self.constant:
            return f"{self.name}: not zero, as the derivative is"
        if self.narrow is not None:
            rounding = f"{self.narrow.name}, which rounds by {self.narrow.epsilon:.1e}"
            return f"{self.name}: its error may be rounding: the rule computes in {rounding}; --tol allows for it"
        if self.factor is None:
            return f"{self.name}: {self.turned or 'no multiple of the derivative'}{self.where}"
        length = f", {self.length}" if self.length else ""
        return f"{self.name}: {self.factor:.12g} times the derivative{length}{self.where}"


class RuleOfCall(RuleOfComplex, Protocol):
    """RuleOfCall is a rule at the operands of one call, where its function can be computed."""

    def of_one(self, variable: int, returned_for: int | None = None, *, sign: int = 0) -> Outcome:
        """Returns the outcome along a random direction of one distinct variable.

        Args:
            variable: The variable that moves, by its number.
            returned_for: The variable of the same shape for which the rule returns what is compared, if it is another.
            sign: The sign of the elements that move; 0 for all.
        """
        ...

    def returns(self, variable: int) -> bool:
        """Returns whether the function returns a distinct variable as it is."""
        ...

    def computes_in(self) -> NarrowType | None:
        """Returns the narrow type that the rule computes in; None where there is none."""
        ...


def wrong_arguments(trace: Trace, call: CustomRuleCall, rule: RuleOfCall) -> tuple[WrongArgument, ...]:
    """Returns the arguments of a call for which its rule is wrong.

    Args:
        trace: The traced loss.
        call: The call.
        rule: The rule at operands of the call.
    """
    outcomes = [[rule.of_one(variable) for _ in range(DIRECTIONS)] for variable in range(len(call.variables))]
    wrong = [variable for variable, found in enumerate(outcomes) if any(each.status == "wrong" for each in found)]
    names = {variable: _name(trace, call, call.variables[variable][0]) for variable in wrong}
    return tuple(_wrong_argument(call, rule, variable, outcomes[variable], names) for variable in wrong)


def _wrong_argument(
    call: CustomRuleCall, rule: RuleOfCall, variable: int, outcomes: Sequence[Outcome], wrong: Mapping[int, str]
) -> WrongArgument:
    not_finite = next((each for each in outcomes if each.not_finite), None)
    if not_finite is not None:
        return WrongArgument(name=wrong[variable], factor=None, not_finite=not_finite.not_finite)
    found = WrongArgument(name=wrong[variable], factor=None, returned=rule.returns(variable))
    factor = confirmed_factor(outcomes, partial(rule.of_one, variable))
    shapes = [call.equation.invars[position].aval.shape for position, *_ in call.variables]
    # Of one number, whatever a rule returns is a multiple of the derivative, and the factor says little.
    if math.isnan(factor) or math.prod(shapes[variable]) == 1:
        for other, name in wrong.items():
            if other != variable and shapes[other] == shapes[variable]:
                exchanged = (rule.of_one(other, returned_for=variable) for _ in range(DIRECTIONS))
                if all(each.status == "correct" for each in exchanged):
                    return replace(found, derivative_of=name)
    narrow = rule.computes_in()
    if narrow is not None and max(each.error for each in outcomes) <= _ROUNDINGS * narrow.epsilon:
        return replace(found, narrow=narrow)
    if not math.isnan(factor):
        length = _length(call.equation, call.variables[variable][0], factor)
        return replace(found, factor=rounded_factor(factor), length=length)
    is_complex = np.issubdtype(call.equation.invars[call.variables[variable][0]].aval.dtype, np.complexfloating)
    turned = complex_factor(rule, variable) if is_complex else None
    if turned is not None:
        return replace(found, turned=turned)
    return _of_one_sign(rule, variable, found) or replace(
        found, constant=all(each.status == "wrong" and math.isnan(each.factor) for each in outcomes)
    )


def _of_one_sign(rule: RuleOfCall, variable: int, found: WrongArgument) -> WrongArgument | None:
    """Returns how a rule is wrong that is right for the elements of the other sign; None for any other."""
    by_sign = {sign: [rule.of_one(variable, sign=sign) for _ in range(DIRECTIONS)] for sign in (1, -1)}
    for sign, word in ((1, "positive"), (-1, "negative")):
        wrong = all(each.status == "wrong" for each in by_sign[sign])
        if wrong and all(each.status == "correct" for each in by_sign[-sign]):
            factor = confirmed_factor(by_sign[sign], partial(rule.of_one, variable, sign=sign))
            multiple = None if math.isnan(factor) else rounded_factor(factor)
            return replace(found, factor=multiple, where=f" where it is {word}")
    return None


def _name(trace: Trace, call: CustomRuleCall, position: int) -> str:
    key = resolve(call.frame, call.equation.invars[position])
    of_loss = None if key is None or key.frame or key.equation != OPERAND else trace.arguments[key.position]
    name = argument_name(call.equation, position)
    return name if of_loss is None else f"{name} ({naming.key_of(of_loss.family, of_loss.name)})"


def _length(equation: Equation, position: int, factor: float) -> str:
    """Returns which axis of an argument, or else of another, has a factor, its square or its inverse as its length."""
    if factor == 0:
        return ""
    number = max(abs(factor), 1 / abs(factor))
    inverse = "" if abs(factor) > 1 else "1 over "
    others = [(f"{argument_name(equation, at)}'s", atom) for at, atom in enumerate(equation.invars) if at != position]
    outputs = [("the output's", atom) for atom in equation.outvars]
    for whose, atom in [("its", equation.invars[position]), *others, *outputs]:
        for length, what in _lengths(atom):
            if length < _SHORTEST:
                continue
            if abs(number - length) <= _IS_LENGTH * length:
                return f"{inverse}{what.format(whose)}"
            root = math.sqrt(length)
            if (root >= _SHORTEST or not root.is_integer()) and abs(number - root) <= _IS_LENGTH * root:
                return f"{inverse}the root of {what.format(whose)}"
    return ""


def _lengths(atom: Any) -> Iterator[tuple[int, str]]:
    shape = getattr(atom.aval, "shape", ())
    for length in dict.fromkeys(shape):
        axes = [str(axis) for axis, other in enumerate(shape) if other == length]
        yield length, f"the length of {{}} {'axis' if len(axes) == 1 else 'axes'} {' and '.join(axes)}"
    yield math.prod(shape), "{} number of elements"
