"""Descent: following values forwards, use by use and through every frame, to all that is made from them.

The counterpart of `flow`, which follows backwards. A *step* leads from a value to one that is made from it, by an
equation, or to the same value as another frame knows it. Only what is made from a value is ever visited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_dropped, is_literal, scan_arity


class Place(NamedTuple):
    """A variable in its frame."""

    frame: Frame
    atom: Atom


#: How a step is taken: by an equation that computes; by one that only chooses what is computed; by receiving the value
#: in a frame, whole (`enter`), turn by turn (`slice`) or in the first turn (`carry`); by handing it on to the next turn
#: (`again`), or out of the frame (`leave`), all turns of it together (`stack`).
Way: TypeAlias = Literal["compute", "choose", "enter", "slice", "carry", "again", "leave", "stack"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        way: How it is taken.
        frame: The frame of the equation that takes it.
        number: That equation.
        to: Where it leads.
    """

    way: Way
    frame: Frame
    number: int
    to: Place


class Descent:
    """The steps of one trace; what is learnt about a frame is kept."""

    def __init__(self) -> None:
        self._uses: dict[Frame, dict[Atom, list[tuple[int, int]]]] = {}
        self._outputs: dict[Frame, dict[Atom, list[int]]] = {}

    def steps(self, place: Place) -> Iterator[Step]:
        """Every step from a value."""
        frame, atom = place
        if frame not in self._uses:
            self._learn(frame)
        for number, position in self._uses[frame].get(atom, ()):
            yield from _into(frame, number, position)
        for position in self._outputs[frame].get(atom, ()):
            yield from _out_of(frame, position)

    def closure(self, start: Iterable[Place], goes: Callable[[Step], bool] = lambda _: True) -> dict[Place, None]:
        """All that some values lead to, themselves included.

        Args:
            start: The values.
            goes: Whether a step is taken.
        """
        found = dict.fromkeys(start)
        waiting = list(found)
        while waiting:
            for step in self.steps(waiting.pop()):
                if step.to not in found and goes(step):
                    found[step.to] = None
                    waiting.append(step.to)
        return found

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
    """The steps that an equation takes with one of its operands."""
    equation = frame.jaxpr.eqns[number]
    inside = frame.children.get(number, [])
    kind = inside[0].kind if inside else "opaque"
    if kind == "opaque":
        yield from _to_outputs("compute", frame, number)
    elif kind == "cond" and position == 0:
        yield from _to_outputs("choose", frame, number)
    elif kind == "cond":
        yield from (Step("enter", frame, number, Place(branch, branch.jaxpr.invars[position - 1])) for branch in inside)
    elif kind == "while":
        yield from _to_outputs("choose", frame, number)
        received = position - equation.params["cond_nconsts"]
        if received >= 0:
            way: Way = "enter" if received < equation.params["body_nconsts"] else "carry"
            yield Step(way, frame, number, Place(inside[0], inside[0].jaxpr.invars[received]))
    else:
        yield Step(_receiving(inside[0], position), frame, number, Place(inside[0], inside[0].jaxpr.invars[position]))


def _receiving(child: Frame, position: int) -> Way:
    """How a frame that is no branch and no `while` receives an operand."""
    if child.kind != "scan" or child.equation is None:
        return "slice" if child.kind == "shard_map" else "enter"
    arity = scan_arity(child.equation)
    if position < arity.constants:
        return "enter"
    return "carry" if position < arity.constants + arity.carries else "slice"


def _to_outputs(way: Way, frame: Frame, number: int) -> Iterator[Step]:
    for variable in frame.jaxpr.eqns[number].outvars:
        if not is_dropped(variable):
            yield Step(way, frame, number, Place(frame, variable))


def _out_of(frame: Frame, position: int) -> Iterator[Step]:
    """The steps that a frame takes with one of its outputs."""
    if frame.parent is None or frame.equation is None or frame.kind == "opaque":
        return
    number = frame.key[-1][0]
    before = _constants_of_loop(frame)
    if before is not None and position < before[1]:
        yield Step("again", frame.parent, number, Place(frame, frame.jaxpr.invars[before[0] + position]))
    variable = frame.equation.outvars[position]
    if not is_dropped(variable):
        stacked = frame.kind == "shard_map" or (before is not None and position >= before[1])
        yield Step("stack" if stacked else "leave", frame.parent, number, Place(frame.parent, variable))


def _constants_of_loop(frame: Frame) -> tuple[int, int] | None:
    """The numbers of constants and of carries that a loop's body receives; None for what is no loop."""
    assert frame.equation is not None
    if frame.kind == "scan":
        arity = scan_arity(frame.equation)
        return arity.constants, arity.carries
    if frame.kind == "while":
        return frame.equation.params["body_nconsts"], len(frame.equation.outvars)
    return None
