"""A softmax adds up exponentials over some axes, of which one may be that of the examples.

It is where the axis is, through every operation up to an array of the batch, the first one of that array. Operations
that the search does not know end it, so that what it says of an axis is proved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.primitive_groups import ADDITIONS, FUNCTIONS_OF_AN_ELEMENT, MULTIPLICATIONS, SLICES
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, resolve, variable_of
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Atom, Equation
from gradscope.tracing.tracer import Trace

#: The most values that are looked at before one operation, for its reduction and for the batch.
_NEAR: Final = 30
_FAR: Final = 1000
#: Return an axis of an operand as the same one, where it is as long.
_SAME_AXES: Final = (
    FUNCTIONS_OF_AN_ELEMENT | ADDITIONS | MULTIPLICATIONS | SLICES
    | {"max", "min", "neg", "sign", "abs", "pow", "select_n", "clamp", "convert_element_type", "reduce_precision",
       "copy", "stop_gradient", "concatenate", "pad", "rev", "reduce_window_max", "reduce_window_sum", "cumsum"}
)  # fmt: skip
_RESHAPES: Final = frozenset({"reshape", "squeeze", "expand_dims"})
_REDUCTIONS: Final = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"})


@dataclass(frozen=True, slots=True)
class SoftmaxAxis:
    """A `SoftmaxAxis` is the axis of the examples, over which a softmax is.

    Attributes:
        axis: The axis of the logits.
        shape: Their shape.
    """

    axis: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"over axis {self.axis} of {list(self.shape)}, that of the examples"


class SoftmaxAxes:
    """`SoftmaxAxes` finds the softmaxes of a trace that are over the examples.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        self._arguments = trace.arguments
        self._frames: Mapping[FrameKey, Frame] = {frame.key: frame for frame in trace.root.walk()}

    def over_examples(self, frame: Frame, number: int) -> SoftmaxAxis | None:
        """Returns the axis of the softmax that an equation is a part of; None where it is not that of the examples.

        Args:
            frame: The frame of the equation.
            number: The equation, which reads the sum of exponentials or subtracts the largest logit.
        """
        for around, reduction in self._reductions(frame, number):
            logits = reduction.invars[0]
            for axis in reduction.params["axes"]:
                if self._is_of_examples(around, logits, axis):
                    return SoftmaxAxis(axis, logits.aval.shape)
        return None

    def tables_over_examples(self, frame: Frame, number: int) -> Iterator[tuple[Frame, Atom]]:
        """Yields the logits of such a softmax that have examples along the first of two axes, and none along the other.

        Args:
            frame: The frame of the equation.
            number: The equation, as for `over_examples`.
        """
        for around, reduction in self._reductions(frame, number):
            logits = reduction.invars[0]
            is_table = len(logits.aval.shape) == 2 and min(logits.aval.shape) > 1 and reduction.params["axes"] == (0,)
            if is_table and [self._is_of_examples(around, logits, axis) for axis in range(2)] == [True, False]:
                yield around, logits

    def _reductions(self, frame: Frame, number: int) -> Iterator[tuple[Frame, Equation]]:
        """Yields the reductions by which a softmax adds up, which an equation reads or is."""
        waiting, seen = [(frame, number)], {(frame.key, number)}
        while waiting and len(seen) < _NEAR:
            around, at = waiting.pop(0)
            equation = around.jaxpr.eqns[at]
            if equation.primitive.name in _REDUCTIONS:
                if self._is_of_softmax(around, equation):
                    yield around, equation
                continue
            for atom in equation.invars:
                value = resolve(around, atom)
                if value is not None and value.equation != OPERAND and (value.frame, value.equation) not in seen:
                    seen.add((value.frame, value.equation))
                    waiting.append((self._frames[value.frame], value.equation))

    def _is_of_softmax(self, frame: Frame, reduction: Equation) -> bool:
        """Returns whether a reduction is a sum of exponentials, or the largest logit, which is subtracted first."""
        if reduction.primitive.name == "reduce_max":
            return True
        value = resolve(frame, reduction.invars[0])
        if reduction.primitive.name != "reduce_sum" or value is None or value.equation == OPERAND:
            return False
        return self._frames[value.frame].jaxpr.eqns[value.equation].primitive.name in ("exp", "exp2")

    def _is_of_examples(self, frame: Frame, atom: Atom, axis: int) -> bool:
        """Returns whether an axis of a value is the first one of an array of the batch."""
        start = resolve(frame, atom)
        waiting: list[tuple[ValueKey, int]] = [] if start is None else [(start, axis)]
        seen = set(waiting)
        while waiting and len(seen) < _FAR:
            value, place = waiting.pop()
            around = self._frames[value.frame]
            is_argument = value.equation == OPERAND and not value.frame
            if is_argument and place == 0 and self._arguments[value.position].family == naming.INPUT:
                return True
            size = variable_of(around, value).aval.shape[place]
            for within, operand, before in _before(around, value, place):
                made, shape = resolve(within, operand), operand.aval.shape
                if made is not None and before < len(shape) and shape[before] == size and (made, before) not in seen:
                    seen.add((made, before))
                    waiting.append((made, before))
        return False


def _before(frame: Frame, value: ValueKey, axis: int) -> Iterator[tuple[Frame, Atom, int]]:
    """Yields the operands of a value, with the axis of each that an axis of the value is, where it is as long."""
    if value.equation == OPERAND:
        if frame.parent is not None and frame.equation is not None and frame.equation.primitive.name in CUSTOM_RULES:
            yield frame.parent, frame.equation.invars[value.position], axis  # a rule's function receives its operands
        return
    equation = frame.jaxpr.eqns[value.equation]
    name, params, operands = equation.primitive.name, equation.params, equation.invars
    if name in CUSTOM_RULES:
        inside = frame.children[value.equation][0]
        yield inside, inside.jaxpr.outvars[value.position], axis
    elif name in _SAME_AXES:
        yield from ((frame, atom, axis) for atom in operands)
    elif name == "transpose":
        yield frame, operands[0], params["permutation"][axis]
    elif name == "broadcast_in_dim" and axis in params["broadcast_dimensions"]:
        yield frame, operands[0], params["broadcast_dimensions"].index(axis)
    elif name in _REDUCTIONS:
        yield frame, operands[0], _others(operands[0], params["axes"])[axis]
    elif name in _RESHAPES:
        before, shape = math.prod(equation.outvars[0].aval.shape[:axis]), operands[0].aval.shape
        yield from ((frame, operands[0], n) for n in range(len(shape)) if math.prod(shape[:n]) == before)
    elif name == "dot_general":
        yield from ((frame, atom, place) for atom, place in _of_product(equation, axis))
    elif name == "conv_general_dilated" and axis == params["dimension_numbers"].out_spec[0]:
        yield frame, operands[0], params["dimension_numbers"].lhs_spec[0]
    elif name == "gather" and axis not in (offsets := params["dimension_numbers"].offset_dims):
        yield frame, operands[1], _others(equation.outvars[0], offsets).index(axis)


def _others(atom: Atom, axes: tuple[int, ...]) -> list[int]:
    """Returns the axes of an atom without some."""
    return [axis for axis in range(len(atom.aval.shape)) if axis not in axes]


def _of_product(equation: Equation, axis: int) -> Iterator[tuple[Atom, int]]:
    """Yields the operands of a product of matrices that have an axis of its result, and which axis of theirs it is."""
    contracted, batched = equation.params["dimension_numbers"]
    if axis < len(batched[0]):
        yield from zip(equation.invars, (dimensions[axis] for dimensions in batched), strict=True)
        return
    axes = [
        (atom, place)
        for atom, summed, common in zip(equation.invars, contracted, batched, strict=True)
        for place in _others(atom, (*summed, *common))
    ]
    yield axes[axis - len(batched[0])]
