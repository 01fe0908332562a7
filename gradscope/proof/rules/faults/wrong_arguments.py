"""`wrong_arguments` names the arguments for which a custom rule is wrong, and how.

A rule often differs from the derivative by one number: a sum in the place of a mean, a sign, a two. The number says
most where it is the length of an axis, or the root of one. Or it returns the derivative with respect to another
argument, or the derivative in another order, or something where the derivative is zero, or it does not look at the
gradient that arrives; or it is wrong for few elements alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from gradscope import naming
from gradscope.proof.claims import Outcome
from gradscope.proof.directions import DIRECTIONS
from gradscope.proof.float64 import NarrowType
from gradscope.proof.rules.faults.arrangements import arranged_derivative
from gradscope.proof.rules.faults.wrong_elements import RuleOfElements, is_zero, wrong_elements
from gradscope.proof.rules.faults.wrong_factors import (
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
        fault: What the rule returns for it: "2 times the derivative".
        factor: That as a multiple of the derivative; None where it is no multiple for all elements.
        may_be_meant: Whether such a rule may be meant to be no derivative.
    """

    name: str
    fault: str
    factor: float | None = None
    may_be_meant: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.fault}"


class RuleOfCall(RuleOfComplex, RuleOfElements, Protocol):
    """RuleOfCall is a rule at the operands of one call, where its function can be computed."""

    def returns(self, variable: int) -> bool:
        """Returns whether the function returns a distinct variable as it is."""
        ...

    def ignores_what_arrives(self, variable: int) -> bool:
        """Returns whether the rule returns the same for one variable, and not zeros, whatever gradients arrive."""
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
    names = {variable: name_of(trace, call, call.variables[variable][0]) for variable in wrong}
    return tuple(_Faults(call, rule, variable, outcomes[variable], names).argument() for variable in wrong)


@dataclass(frozen=True, slots=True)
class _Faults:
    """_Faults are the ways in which a rule can be wrong for one variable.

    Attributes:
        call: A call of the function.
        rule: The rule at operands of the call.
        variable: The variable, by its number.
        outcomes: The outcomes along directions of it.
        names: The names of the variables for which the rule is wrong, by their numbers.
    """

    call: CustomRuleCall
    rule: RuleOfCall
    variable: int
    outcomes: Sequence[Outcome]
    names: Mapping[int, str]

    def argument(self) -> WrongArgument:
        """Returns the variable with the first fault that it has, from what says most to what says least."""
        name, not_finite = self.names[self.variable], self._not_finite()
        if not_finite:
            return WrongArgument(name=name, fault=not_finite)
        found = WrongArgument(name=name, fault="", may_be_meant=self.rule.returns(self.variable))
        factor = confirmed_factor(self.outcomes, partial(self.rule.of_one, self.variable))
        fault = self._of_another(factor) or self._ignoring(factor) or self._rounding()
        if not fault and not math.isnan(factor):
            length = _length(self.call.equation, self._position, factor)
            fault = ", ".join(filter(None, (_multiple(factor), length)))
            return replace(found, fault=fault, factor=rounded_factor(factor))
        fault = fault or self._turned() or self._arranged()
        return replace(found, fault=fault) if fault else self._of_some(found)

    @property
    def _position(self) -> int:
        return self.call.variables[self.variable][0]

    def _not_finite(self) -> str:
        found = next((each.not_finite for each in self.outcomes if each.not_finite), "")
        return found and f"{found}, as the derivative is not"

    def _of_another(self, factor: float) -> str:
        shapes = [self.call.equation.invars[position].aval.shape for position, *_ in self.call.variables]
        # Of one number, whatever a rule returns is a multiple of the derivative, and the factor says little.
        if not math.isnan(factor) and math.prod(shapes[self.variable]) != 1:
            return ""
        for other, name in self.names.items():
            if other != self.variable and shapes[other] == shapes[self.variable]:
                exchanged = (self.rule.of_one(other, returned_for=self.variable) for _ in range(DIRECTIONS))
                if all(each.status == "correct" for each in exchanged):
                    return f"the derivative with respect to {name}"
        return ""

    def _ignoring(self, factor: float) -> str:
        ignores = math.isnan(factor) and self.rule.ignores_what_arrives(self.variable)
        return "the same whatever gradient arrives" if ignores else ""

    def _rounding(self) -> str:
        narrow = self.rule.computes_in()
        if narrow is None or max(each.error for each in self.outcomes) > _ROUNDINGS * narrow.epsilon:
            return ""
        rounding = f"{narrow.name}, which rounds by {narrow.epsilon:.1e}"
        return f"its error may be rounding: the rule computes in {rounding}; --tol allows for it"

    def _turned(self) -> str:
        dtype = self.call.equation.invars[self._position].aval.dtype
        turned = complex_factor(self.rule, self.variable) if np.issubdtype(dtype, np.complexfloating) else None
        return "" if turned is None else str(turned)

    def _arranged(self) -> str:
        arranged = arranged_derivative(self.rule, self.variable)
        return arranged and f"the derivative {arranged}"

    def _of_some(self, found: WrongArgument) -> WrongArgument:
        some = wrong_elements(self.rule, self.variable)
        factor, where = (math.nan, "") if some is None else (some.factor, some.where)
        if is_zero(self.outcomes) if some is None else some.constant:
            return replace(found, fault=f"not zero, as the derivative is{where}", may_be_meant=True)
        return replace(found, fault=f"{_multiple(factor)}{where}")


def _multiple(factor: float) -> str:
    return (
        "no multiple of the derivative" if math.isnan(factor) else f"{rounded_factor(factor):.12g} times the derivative"
    )


def name_of(trace: Trace, call: CustomRuleCall, position: int) -> str:
    """Returns the name of an operand in its function, or its number, and the loss's argument that it is, if it is one.

    Args:
        trace: The traced loss.
        call: A call of the function.
        position: The position of the operand.
    """
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
