"""The logits that a loss takes may be what a rectifier returns, so that none is below zero, or a sigmoid or a tanh.

Found is a maximum with zero, limited above or not, or a smooth one, or a sigmoid or a tanh, whose result, unchanged, is
the logits of a softmax that a logarithm follows, or of a sigmoid of a loss that takes logits. What is computed of it
otherwise, as by a layer, a norm or a factor, is no logit; nor is the score in attention, of whose softmax no logarithm
is taken. A sigmoid of a sigmoid is the finding `saturated`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from gradscope.dump.manifest.operation_facts import RectifiedLogits
from gradscope.dump.manifest.operation_facts.rectified import LogitsMaker
from gradscope.dump.manifest.operation_facts.saturation import BoundedName
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Atom, is_literal
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.lookup.functions.softmax_neighbours import SoftmaxNeighbours
from gradscope.tracing.tracer import Trace

#: What is told of a softmax alone: a sigmoid of a sigmoid is a finding, and a softplus of a softplus may be a scale.
_OF_SOFTMAX: Final = frozenset({"sigmoid", "softplus"})


def rectified_logits(trace: Trace) -> tuple[RectifiedLogits, ...]:
    """Returns the functions whose results are the logits of a loss, each line once, in program order.

    Args:
        trace: The trace.
    """
    return tuple(dict.fromkeys(_found(trace)))


def _found(trace: Trace) -> Iterator[RectifiedLogits]:
    search = _Search(trace)
    for frame in trace.root.walk():
        for number in () if frame.opaque or frame.bypassed else range(len(frame.jaxpr.eqns)):
            function = search.function(frame, number)
            by = None if function is None else search.made_by(frame, number)
            if function is not None and by is not None and (function == "softmax" or by not in _OF_SOFTMAX):
                source = trace.site_at(made_at(frame, number, 0)).source
                yield RectifiedLogits(function=function, by=by, source=source)


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._constants, flow = Constants(trace), ForwardFlow()
        self._values = ModelValues(trace, flow)
        of_params, of_batch = self._values.of_params, self._values.of_batch
        self._neighbours = SoftmaxNeighbours(trace, self._frames, flow, of_params, of_batch)
        self._rules: Mapping[str, Callable[[Frame, Sequence[Atom]], LogitsMaker | None]] = {
            "max": self._of_maximum, "min": self._of_minimum, "add": self._of_sum, "log1p": self._of_logarithm,
            "clamp": lambda frame, operands: self._of_maximum(frame, operands[:1]),  # which has its lower limit first
            "select_n": self._of_choice, "logistic": lambda *_: "sigmoid", "tanh": lambda *_: "tanh",
        }  # fmt: skip

    def function(self, frame: Frame, number: int) -> BoundedName | None:
        """Returns the function of a loss that takes an equation's result for logits; None where none does."""
        equation = frame.jaxpr.eqns[number]
        if len(equation.outvars) != 1 or self.made_by(frame, number) is None:
            return None
        result = FrameVariable(frame, equation.outvars[0])
        passes = self._values.are_learned(result) and result in self._values.of_batch
        return self._neighbours.function_of_logits(result) if passes else None

    def made_by(self, frame: Frame, number: int) -> LogitsMaker | None:
        """Returns which of the functions that are looked for an equation computes; None for none."""
        equation = frame.jaxpr.eqns[number]
        if equation.primitive.name in CUSTOM_RULES:
            inside = frame.children[number][0]
            return self._kind(inside, inside.jaxpr.outvars[0], within=frame)
        rule = self._rules.get(equation.primitive.name)
        return None if rule is None else rule(frame, equation.invars)

    def _of_maximum(self, frame: Frame, operands: Sequence[Atom]) -> LogitsMaker | None:
        return "rectifier" if any(self._number(frame, atom) == 0 for atom in operands) else None

    def _of_minimum(self, frame: Frame, operands: Sequence[Atom]) -> LogitsMaker | None:
        """Returns the function that is limited by a number, as in a ReLU that ends at 6."""
        others = [atom for atom in operands if self._number(frame, atom) is None]
        return self._kind(frame, others[0]) if len(others) == 1 else None

    def _of_sum(self, frame: Frame, operands: Sequence[Atom]) -> LogitsMaker | None:
        """Returns the softplus that is computed as max(x, 0) + log1p(exp(-|x|))."""
        rectified = "rectifier" in [self._kind(frame, atom) for atom in operands]
        return "softplus" if rectified and "log1p" in [self._primitive(frame, atom) for atom in operands] else None

    def _of_logarithm(self, frame: Frame, operands: Sequence[Atom]) -> LogitsMaker | None:
        return "softplus" if self._primitive(frame, operands[0]) == "exp" else None

    def _of_choice(self, frame: Frame, operands: Sequence[Atom]) -> LogitsMaker | None:
        """Returns a softplus that is made right for infinities."""
        return "softplus" if "softplus" in [self._kind(frame, atom) for atom in operands[1:]] else None

    def _kind(self, frame: Frame, atom: Atom, *, within: Frame | None = None) -> LogitsMaker | None:
        """Returns by which of the functions a value is made, where that is inside a frame; None for none of them."""
        made = resolve(frame, atom)
        inside = within is None or (made is not None and len(made.frame) > len(within.key))
        if made is None or made.equation == OPERAND or not inside:
            return None
        return self.made_by(self._frames[made.frame], made.equation)

    def _number(self, frame: Frame, atom: Atom) -> float | None:
        """Returns the number that an atom is, also one that a function with a rule of its own is called with."""
        known, call = self._constants.number(frame, atom), frame.equation
        if known is not None or call is None or frame.parent is None or call.primitive.name not in CUSTOM_RULES:
            return known
        given = dict(zip(frame.jaxpr.invars, call.invars, strict=False))
        alike = len(call.invars) == len(given) and not is_literal(atom) and atom in given
        return self._number(frame.parent, given[atom]) if alike else None

    def _primitive(self, frame: Frame, atom: Atom) -> str | None:
        made = resolve(frame, atom)
        if made is None or made.equation == OPERAND:
            return None
        return self._frames[made.frame].jaxpr.eqns[made.equation].primitive.name
