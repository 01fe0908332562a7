"""A norm may be computed of statistics that the loss is given, as a batch norm in evaluation, and not of the batch.

Found is a value made of parameters and the batch from which an argument is subtracted, and which is multiplied by one
over the root of another one, or divided by that root, but for a number that is added to it and for factors. What is
made of the batch alone, such as normalised observations, does not count, nor does a root without a mean, as of the
degrees of a graph. Nor does what no parameter is applied to any more: predictions are compared with targets in the
units of those, whose mean and variance a step is given.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from gradscope import naming
from gradscope.primitive_groups import COPIES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.tracer import Trace

_ROOTS: Final = frozenset({"rsqrt", "sqrt"})
#: The most steps from a product back to a root.
_NEAR: Final = 12


def given_statistics(trace: Trace) -> tuple[str | None, ...]:
    """Returns the places of norms whose mean and variance are given, `file:line`, each once; None where unknown.

    Args:
        trace: The trace of a loss.
    """
    search = _Search(trace)
    return tuple(
        dict.fromkeys(
            trace.site_at(made_at(frame, number, 0)).source
            for frame in trace.root.walk()
            if not frame.opaque
            for number, equation in enumerate(frame.jaxpr.eqns)
            if search.is_norm(frame, equation)
        )
    )


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._flow = ForwardFlow()
        self._constants, self._values = Constants(trace), ModelValues(trace, self._flow)

    def is_norm(self, frame: Frame, equation: Equation) -> bool:
        """Returns whether an equation multiplies what is centred by what is made of a given variance."""
        if equation.primitive.name not in ("mul", "div"):
            return False
        one, other = equation.invars
        pairs = [(one, other)] if equation.primitive.name == "div" else [(one, other), (other, one)]
        return any(
            self._is_centred(frame, value) and self._is_of_variance(frame, factor) and self._is_read(frame, equation)
            for value, factor in pairs
        )

    def _is_read(self, frame: Frame, equation: Equation) -> bool:
        """Returns whether parameters are applied to what an equation makes, or are a factor in it."""
        variables = [FrameVariable(frame, atom) for atom in equation.invars if not is_literal(atom)]
        if sum(each in self._values.of_params for each in variables) > 1:
            return True
        start = FrameVariable(frame, equation.outvars[0])
        return any(
            self._is_weight(step.frame, atom)
            for value in self._flow.reached([start])
            for step in self._flow.steps(value)
            for atom in step.frame.jaxpr.eqns[step.number].invars
        )

    def _is_weight(self, frame: Frame, atom: Atom) -> bool:
        """Returns whether parameters alone make an array: a number may be the penalty of a loss."""
        variable = FrameVariable(frame, atom)
        several = not is_literal(atom) and math.prod(atom.aval.shape) > 1
        return several and variable in self._values.of_params and variable not in self._values.of_batch

    def _is_centred(self, frame: Frame, atom: Atom) -> bool:
        made = self._maker(frame, atom, COPIES)
        if made is None or made[1].primitive.name != "sub":
            return False
        around, difference = made
        value, mean = difference.invars
        variable = FrameVariable(around, value)
        # Of parameters alone, it is their distance from a prior.
        learned = not is_literal(value) and variable in self._values.of_batch and self._values.are_learned(variable)
        given = self._given(around, mean) if learned else None
        return given is not None and not _is_of_each(given.shape, difference.outvars[0].aval.shape)

    def _is_of_variance(self, frame: Frame, atom: Atom) -> bool:
        waiting, seen = [(frame, atom)], 0
        while waiting and seen < _NEAR:
            made, seen = self._maker(*waiting.pop(), COPIES), seen + 1
            if made is None:
                continue
            around, equation = made
            if equation.primitive.name in _ROOTS and self._given(around, equation.invars[0]) is not None:
                return True
            if equation.primitive.name == "mul":
                waiting += [(around, each) for each in equation.invars]
        return False

    def _given(self, frame: Frame, atom: Atom) -> Leaf | None:
        """Returns the argument that a value is, but for a number added to it; None for a parameter, and for others."""
        value = resolve(frame, atom)
        while value is not None and value.equation != OPERAND:
            around = self._frames[value.frame]
            equation = around.jaxpr.eqns[value.equation]
            varying = [each for each in equation.invars if self._constants.number(around, each) is None]
            if equation.primitive.name not in COPIES | {"add", "max"} or len(varying) != 1:
                return None
            value = resolve(around, varying[0])
        if value is None or value.frame != ():
            return None
        leaf = self._trace.arguments[value.position]
        return leaf if leaf.family != naming.PARAM and max(leaf.shape, default=1) > 1 else None

    def _maker(self, frame: Frame, atom: Atom, through: Collection[str]) -> tuple[Frame, Equation] | None:
        """Returns the nearest equation that makes a value, behind some primitives; None for an argument."""
        value = resolve(frame, atom)
        while value is not None and value.equation != OPERAND:
            around = self._frames[value.frame]
            equation = around.jaxpr.eqns[value.equation]
            if equation.primitive.name not in through:
                return around, equation
            value = resolve(around, equation.invars[0])
        return None


def _is_of_each(given: Sequence[int], shape: Sequence[int]) -> bool:
    """Returns whether what is subtracted is a target of each example, as many numbers as it is subtracted from."""
    return (math.prod(given), *given[:1]) == (math.prod(shape), *shape[:1])
