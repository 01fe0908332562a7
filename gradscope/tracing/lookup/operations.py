"""Operations are found by the values that they make and read, one iteration of their loops at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.primitive_groups import COPIES
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation
from gradscope.tracing.layers.fallback_scopes import operation_name
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An `Operation` is one equation in one iteration of the loops around it.

    Attributes:
        frame: The frame it is in.
        equation: The equation.
        layer: The operation as a layer.
        iteration: The iteration.
        operands: Its operands: values, or the arrays of constants.
        outputs: The values that it makes.
    """

    frame: Frame
    equation: Equation
    layer: LayerCall
    iteration: tuple[int, ...]
    operands: tuple[ValueAt | Any, ...]
    outputs: tuple[ValueAt, ...]

    @property
    def name(self) -> str:
        """The path of the operation."""
        return str(self.layer.path.at(self.iteration))

    @property
    def layer_name(self) -> str | None:
        """The path of the layer that the operation is in; None outside all layers."""
        layer = self.layer.innermost_layer
        return None if layer is None else str(layer.path.at(self.iteration[: len(layer.frame.loops)]))

    @property
    def primitive(self) -> str:
        """The name of its primitive."""
        return self.equation.primitive.name

    @property
    def place(self) -> str:
        """The words for the line that computes it; "" where it is not known."""
        return f" at {self.layer.source}" if self.layer.source else ""

    @property
    def values(self) -> list[ValueAt]:
        """The operands that are values."""
        return [operand for operand in self.operands if isinstance(operand, ValueAt)]


class Operations:
    """`Operations` finds the operations of a trace that was made with operations.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        self.frames = {frame.key: frame for frame in trace.root.walk()}
        self._constants = Constants(trace)
        self._layers = {(layer.frame.key, layer.equations[0]): layer for layer in trace.layers if layer.operation}
        self._readers: dict[ValueKey, list[ValueKey]] = {}
        for frame in self.frames.values():
            for number, equation in enumerate(frame.jaxpr.eqns):
                if operation_name(equation) is not None and not frame.opaque:
                    self._note_reader(frame, number, equation)

    def _note_reader(self, frame: Frame, number: int, equation: Equation) -> None:
        read = (resolve(frame, atom) for atom in equation.invars)
        for value in dict.fromkeys(value for value in read if value is not None):
            self._readers.setdefault(value, []).append(ValueKey(frame.key, number, 0))

    def maker(self, value_at: ValueAt) -> Operation:
        """Returns the operation that makes a value; for a value that a loop receives, the loop."""
        value, iteration = value_at
        if value.equation == OPERAND:
            *around, (number, _) = value.frame
            value = ValueKey(tuple(around), number, 0)
        frame = self.frames[value.frame]
        iteration = iteration[: len(frame.loops)]
        equation = frame.jaxpr.eqns[value.equation]
        return Operation(
            frame=frame,
            equation=equation,
            layer=self._layers[frame.key, value.equation],
            iteration=iteration,
            operands=tuple(self._operand(frame, atom, iteration) for atom in equation.invars),
            outputs=tuple(
                ValueAt(ValueKey(frame.key, value.equation, position), iteration)
                for position in range(len(equation.outvars))
            ),
        )

    def readers(self, value_at: ValueAt) -> Iterator[Operation]:
        """Yields the operations that read a value, in every iteration in which they do, in reverse execution order."""
        for value in reversed(self._readers.get(value_at.value, [])):
            inner = self.frames[value.frame].loops[len(value_at.iteration) :]
            for further in itertools.product(*(reversed(range(loop.length or 1)) for loop in inner)):
                yield self.maker(ValueAt(value, (*value_at.iteration, *further)))

    def made_by(self, values: Sequence[ValueAt], primitive: str) -> list[Operation]:
        """Returns the operations of one primitive that made some values, shapes and rounding aside."""
        found: list[Operation] = []
        for value in values:
            at = value
            while at.value.equation >= 0:
                maker = self.maker(at)
                if maker.primitive == primitive:
                    found.append(maker)
                if maker.primitive not in COPIES | {"abs", "stop_gradient"} or not maker.values:
                    break
                at = maker.values[0]
        return found

    def _operand(self, frame: Frame, atom: Atom, iteration: tuple[int, ...]) -> ValueAt | Any:
        value = resolve(frame, atom)
        if value is None:
            return self._constants.value(frame, atom)
        return ValueAt(value, iteration[: len(self.frames[value.frame].loops)])
