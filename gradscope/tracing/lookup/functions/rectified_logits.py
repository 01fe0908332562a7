"""The logits that a loss takes may be what a rectifier returns, so that none of them is below zero.

Found is a maximum with zero, limited above or not, whose result, unchanged, is the logits of a softmax that a logarithm
follows, or of a sigmoid of a loss that takes logits. What is computed of it otherwise, as by a layer or a norm, is no
logit; nor is the score in attention, of whose softmax no logarithm is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.dump.manifest.operation_facts import RectifiedLogits
from gradscope.dump.manifest.operation_facts.saturation import BoundedName
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Atom
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.lookup.functions.softmax_neighbours import SoftmaxNeighbours
from gradscope.tracing.tracer import Trace


def rectified_logits(trace: Trace) -> tuple[RectifiedLogits, ...]:
    """Returns the rectifiers whose results are the logits of a loss, each line once, in program order.

    Args:
        trace: The trace.
    """
    return tuple(dict.fromkeys(_found(trace)))


def _found(trace: Trace) -> Iterator[RectifiedLogits]:
    search = _Search(trace)
    for frame in trace.root.walk():
        for number in () if frame.opaque or frame.bypassed else range(len(frame.jaxpr.eqns)):
            function = search.function(frame, number)
            if function is not None:
                yield RectifiedLogits(function=function, source=trace.site_at(made_at(frame, number, 0)).source)


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._constants, flow = Constants(trace), ForwardFlow()
        self._values = ModelValues(trace, flow)
        of_params, of_batch = self._values.of_params, self._values.of_batch
        self._neighbours = SoftmaxNeighbours(trace, self._frames, flow, of_params, of_batch)

    def function(self, frame: Frame, number: int) -> BoundedName | None:
        """Returns the function of which an equation makes the logits by rectifying them; None where it does not."""
        equation = frame.jaxpr.eqns[number]
        if len(equation.outvars) != 1 or not self._is_rectifier(frame, number):
            return None
        result = FrameVariable(frame, equation.outvars[0])
        passes = self._values.are_learned(result) and result in self._values.of_batch
        return self._neighbours.function_of_logits(result) if passes else None

    def _is_rectifier(self, frame: Frame, number: int) -> bool:
        equation = frame.jaxpr.eqns[number]
        if equation.primitive.name in ("max", "clamp"):  # a clamp has its lower limit first
            lower = equation.invars if equation.primitive.name == "max" else equation.invars[:1]
            return any(self._constants.number(frame, atom) == 0 for atom in lower)
        if equation.primitive.name == "min":
            return self._is_limit_of_rectifier(frame, equation.invars)
        if equation.primitive.name not in CUSTOM_RULES:
            return False
        inside = frame.children[number][0]
        made = resolve(inside, inside.jaxpr.outvars[0])
        within = made is not None and made.equation != OPERAND and len(made.frame) > len(frame.key)
        return made is not None and within and self._is_rectifier(self._frames[made.frame], made.equation)

    def _is_limit_of_rectifier(self, frame: Frame, operands: Sequence[Atom]) -> bool:
        """Returns whether one operand is a number, and the other made by a rectifier, as in a ReLU that ends at 6."""
        made = [resolve(frame, each) for each in operands if self._constants.number(frame, each) is None]
        return (
            len(made) == 1
            and made[0] is not None
            and made[0].equation != OPERAND
            and self._is_rectifier(self._frames[made[0].frame], made[0].equation)
        )
