"""Forward dataflow follows values, use by use and through every frame, to everything that is made from them.

It is the counterpart of `backward`. A *step* leads from a variable to one that is made from it by an equation, or to
the variable that has the same value in another frame. Only what is made from a value is ever visited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import OPERAND_BY_OPERAND, Atom, is_dropped, is_literal
from gradscope.tracing.jaxpr.transfers import Entering


class FrameVariable(NamedTuple):
    """A `FrameVariable` is a variable in its frame."""

    frame: Frame
    atom: Atom


#: How a step is taken: by an equation that computes; by one that only chooses what is computed; into a frame, unchanged
#: (`enter`), one slice for each iteration (`slice`) or for the first iteration (`carry`); to the next iteration
#: (`again`); out of the frame (`leave`), stacked over all iterations (`stack`).
Way: TypeAlias = Literal["compute", "choose", "enter", "slice", "carry", "again", "leave", "stack"]

_ENTERING: Final[Mapping[Entering, Way]] = {"same": "enter", "carry": "carry", "slice": "slice"}


@dataclass(frozen=True, slots=True)
class Step:
    """A `Step` leads from a variable to one that is made from it, or to the same value in another frame.

    Attributes:
        way: How it is taken.
        frame: The frame of the equation that takes it.
        number: That equation.
        to: Where it leads.
    """

    way: Way
    frame: Frame
    number: int
    to: FrameVariable


class ForwardFlow:
    """A `ForwardFlow` returns the steps of one trace, and caches its results for each frame."""

    def __init__(self) -> None:
        self._uses: dict[Frame, dict[Atom, list[tuple[int, int]]]] = {}
        self._outputs: dict[Frame, dict[Atom, list[int]]] = {}

    def steps(self, variable: FrameVariable) -> Iterator[Step]:
        """Yields every step from a value."""
        frame, atom = variable
        if frame not in self._uses:
            self._learn(frame)
        for number, position in self._uses[frame].get(atom, ()):
            yield from _into(frame, number, position)
        for position in self._outputs[frame].get(atom, ()):
            yield from _out_of(frame, position)

    def closure(
        self, start: Iterable[FrameVariable], goes: Callable[[Step], bool] = lambda _: True
    ) -> dict[FrameVariable, None]:
        """Returns all variables that some values lead to, themselves included.

        Args:
            start: The values.
            goes: Whether a step is taken.
        """
        return dict.fromkeys(self.reached(start, goes))

    def reached(
        self, start: Iterable[FrameVariable], goes: Callable[[Step], bool] = lambda _: True
    ) -> Iterator[FrameVariable]:
        """Yields the variables of `closure` as they are found."""
        found = set(waiting := list(dict.fromkeys(start)))
        yield from list(waiting)
        while waiting:
            for step in self.steps(waiting.pop()):
                if step.to not in found and goes(step):
                    found.add(step.to)
                    waiting.append(step.to)
                    yield step.to

    def _learn(self, frame: Frame) -> None:
        uses = self._uses.setdefault(frame, {})
        for number, equation in enumerate(frame.jaxpr.eqns):
            for position, atom in _variables(equation.invars):
                uses.setdefault(atom, []).append((number, position))
        outputs = self._outputs.setdefault(frame, {})
        for position, atom in _variables(frame.jaxpr.outvars):
            outputs.setdefault(atom, []).append(position)


def _variables(atoms: Sequence[Atom]) -> Iterator[tuple[int, Atom]]:
    return ((position, atom) for position, atom in enumerate(atoms) if not is_literal(atom))


def _into(frame: Frame, number: int, position: int) -> Iterator[Step]:
    """Yields the steps that an equation takes with one of its operands."""
    inside = frame.children.get(number, [])
    if frame.jaxpr.eqns[number].primitive.name in OPERAND_BY_OPERAND:
        variable = frame.jaxpr.eqns[number].outvars[position]
        if not is_dropped(variable):
            yield Step("compute", frame, number, FrameVariable(frame, variable))
    elif not inside or position in inside[0].transfer.differentiated:
        yield from _to_outputs("compute", frame, number)
    elif inside[0].transfer.decides(position):
        yield from _to_outputs("choose", frame, number)
    for child in () if inside and inside[0].transfer.beside else inside:
        for variable, how in child.transfer.entering(position):
            yield Step(_ENTERING[how], frame, number, FrameVariable(child, child.jaxpr.invars[variable]))


def _to_outputs(way: Way, frame: Frame, number: int) -> Iterator[Step]:
    for variable in frame.jaxpr.eqns[number].outvars:
        if not is_dropped(variable):
            yield Step(way, frame, number, FrameVariable(frame, variable))


def _out_of(frame: Frame, position: int) -> Iterator[Step]:
    """Yields the steps that a frame takes with one of its outputs."""
    how = frame.transfer.outputs[position]
    if frame.parent is None or frame.equation is None or how is None:
        return
    number = frame.key[-1][0]
    following = frame.transfer.next_variable(position)
    if following is not None:
        yield Step("again", frame.parent, number, FrameVariable(frame, frame.jaxpr.invars[following]))
    variable = frame.equation.outvars[position]
    if not is_dropped(variable):
        way: Way = "stack" if how == "stack" else "leave"
        yield Step(way, frame.parent, number, FrameVariable(frame.parent, variable))
