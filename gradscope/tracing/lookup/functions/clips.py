"""Clips by two numbers are found where a value that parameters change is clipped, and a gradient comes back.

That is `jnp.clip`, `lax.clamp`, or a maximum of a minimum. A bound on one side is a rectifier, or keeps a logarithm
finite, and so is 0 to 6 (ReLU6).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.lookup.functions.bounded_functions import BoundedFunction
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.tracer import Trace

_OTHER: Final = {"max": "min", "min": "max"}
_RECTIFIER: Final = (0.0, 6.0)


class _Limits(NamedTuple):
    low: float
    high: float


def clips(trace: Trace) -> Iterator[BoundedFunction]:
    """Yields the clips of a trace, in program order.

    Args:
        trace: The trace.
    """
    search, values = _Search(trace), ModelValues(trace, ForwardFlow())
    for frame in trace.root.walk():
        if frame.opaque or frame.bypassed:
            continue
        for number, equation in enumerate(frame.jaxpr.eqns):
            limits = search.limits(frame, equation)
            if limits is not None and values.are_learned(FrameVariable(frame, equation.outvars[0])):
                yield BoundedFunction(
                    function="clip",
                    site=trace.site_at(made_at(frame, number, 0)),
                    entries=1,
                    layer=None,
                    inputs=tuple,
                    limits=limits,
                )


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._constants = Constants(trace)

    def limits(self, frame: Frame, equation: Equation) -> _Limits | None:
        """Returns the limits of a clip; None where an equation is none."""
        name = equation.primitive.name
        if name == "clamp":
            found = [self._constants.number(frame, equation.invars[at]) for at in (0, 2)]
        elif name in _OTHER and is_inexact(equation.outvars[0]):
            found = self._of_two(frame, equation)
        else:
            return None
        low, high = found
        if low is None or high is None or not (-math.inf < low < high < math.inf) or (low, high) == _RECTIFIER:
            return None
        return _Limits(low, high)

    def _of_two(self, frame: Frame, outer: Equation) -> list[float | None]:
        """Returns the limits of a minimum of a maximum, or of a maximum of a minimum; None for what is no number."""
        own, rest = self._split(frame, outer)
        value = None if rest is None else resolve(frame, rest)
        if own is None or value is None or value.equation == OPERAND:
            return [None, None]
        around = self._frames[value.frame]
        inner = around.jaxpr.eqns[value.equation]
        if inner.primitive.name != _OTHER[outer.primitive.name]:
            return [None, None]
        other, _ = self._split(around, inner)
        return [other, own] if outer.primitive.name == "min" else [own, other]

    def _split(self, frame: Frame, equation: Equation) -> tuple[float | None, Atom | None]:
        """Returns the number among the two operands of an equation, and the other operand; None where there is none."""
        one, two = equation.invars
        for number, rest in ((one, two), (two, one)):
            if (found := self._constants.number(frame, number)) is not None:
                return found, rest
        return None, None
