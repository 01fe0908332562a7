"""A loss may return a running average: so much of what it is given, and so much of what it computes.

Those of a batch norm are the mean and the variance of each channel. The step has to hand them to the loss again. A norm
may also divide by its averages while it trains, but for the first step, of which a flag informs it that is handed on
with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import jax.numpy as jnp

from gradscope import naming
from gradscope.primitive_groups import ADDITIONS, COPIES, MULTIPLICATIONS
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, resolve, unchanged_operand
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.tracer import Trace

#: The most operations from an average back to what it is an average of.
_NEAR: Final = 8
#: Return the elements of their operand, as a norm of Flax NNX does before it keeps an average.
_SAME: Final = COPIES | {"stop_gradient"}
#: Stands for all values that are no input.
_COMPUTED: Final = -1


class RunningAverage(NamedTuple):
    """A `RunningAverage` is an output with the input that it is the next value of.

    Attributes:
        input: The number of the input: of an argument of the trace, or, behind these, of a constant.
        output: The number of the output among the auxiliary ones.
    """

    input: int
    output: int


def running_averages(trace: Trace) -> Iterator[RunningAverage]:
    """Yields the running averages that a loss returns beside its value.

    What the value depends on may be given again on purpose, unless a flag says that there is nothing before it.

    Args:
        trace: The trace of a loss.
    """
    search, root = _Search(trace), trace.root
    for number, atom in enumerate(root.jaxpr.outvars[1:]):
        if is_literal(atom) or not jnp.issubdtype(atom.aval.dtype, jnp.floating):
            continue
        shares = search.shares(root, atom, _NEAR)
        for at, share in shares.items() if _COMPUTED in shares else ():
            if at == _COMPUTED or not 0 < share < 1 or not search.is_state(at, like=atom):
                continue
            if not search.leads_to_loss(at) or search.begins_by_flag(root, atom, _NEAR):
                yield RunningAverage(at, number)


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._constants, self._flow = Constants(trace), ForwardFlow()
        self._inputs = (*trace.root.jaxpr.invars, *trace.root.jaxpr.constvars)
        self._numbers = {atom: at for at, atom in enumerate(self._inputs)}

    def is_state(self, at: int, *, like: Atom) -> bool:
        """Returns whether an input has the shape of an output, and is no parameter."""
        is_argument = at < len(self._trace.arguments)
        is_param = is_argument and self._trace.arguments[at].family == naming.PARAM
        return self._inputs[at].aval.shape == like.aval.shape and not is_param

    def leads_to_loss(self, at: int) -> bool:
        """Returns whether the loss depends on an input."""
        root = self._trace.root
        return FrameVariable(root, root.jaxpr.outvars[0]) in self._flow.closure([FrameVariable(root, self._inputs[at])])

    def begins_by_flag(self, frame: Frame, atom: Atom, near: int) -> bool:
        """Returns whether a value is a choice by one truth value that is an input."""
        value = resolve(frame, atom)
        if value is None or value.equation == OPERAND or not near:
            return False
        around = self._frames[value.frame]
        equation = around.jaxpr.eqns[value.equation]
        if equation.primitive.name != "select_n":
            return equation.primitive.name in _SAME and self.begins_by_flag(around, equation.invars[0], near - 1)
        chosen = resolve(around, equation.invars[0])
        by_argument = chosen is not None and chosen.equation == OPERAND and not chosen.frame
        by_input = by_argument or (chosen is None and self._constant(around, equation.invars[0]) is not None)
        return by_input and equation.invars[0].aval.shape == () and equation.invars[0].aval.dtype == bool

    def shares(self, frame: Frame, atom: Atom, near: int) -> dict[int, float]:
        """Returns how much of each input is in a value, as a sum of values times numbers; under `_COMPUTED` others."""
        value = resolve(frame, atom)
        if value is None or value.equation == OPERAND:
            at = self._constant(frame, atom) if value is None else None if value.frame else value.position
            return {_COMPUTED if at is None else at: 1.0}
        around = self._frames[value.frame]
        equation = around.jaxpr.eqns[value.equation]
        name = equation.primitive.name
        operands = [(each, self._constants.number(around, each)) for each in equation.invars]
        if not near:
            return {_COMPUTED: 1.0}
        if name in ADDITIONS:
            signs = (1.0, -1.0 if name == "sub" else 1.0)
            terms = [
                (self.shares(around, each, near - 1), sign) for each, sign in zip(equation.invars, signs, strict=True)
            ]
            return {at: sum(sign * term.get(at, 0) for term, sign in terms) for at in terms[0][0] | terms[1][0]}
        if name in MULTIPLICATIONS:
            (one, first), (other, second) = operands
            if second:
                return _times(self.shares(around, one, near - 1), 1 / second if name == "div" else second)
            if first and name == "mul":
                return _times(self.shares(around, other, near - 1), first)
        # Of a choice, the longest sum: the first step may take what it computes as it is.
        same = equation.invars[1:] if name == "select_n" else equation.invars[:1] if name in _SAME else ()
        return max((self.shares(around, each, near - 1) for each in same), key=len, default={_COMPUTED: 1.0})

    def _constant(self, frame: Frame, atom: Atom) -> int | None:
        """Returns the number of the constant that an atom is; None for a literal, and for a constant of a frame."""
        if is_literal(atom):
            return None  # it has no hash
        if atom in self._numbers or frame.parent is None or atom not in frame.definitions:
            return self._numbers.get(atom)
        outer = unchanged_operand(frame, frame.definitions[atom][1])
        return None if outer is None else self._constant(frame.parent, outer)


def _times(shares: Mapping[int, float], factor: float) -> dict[int, float]:
    return {at: share * factor for at, share in shares.items()}
