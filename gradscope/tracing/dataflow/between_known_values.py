"""A trace is cut between known values, so that each segment can be observed in isolation.

A *segment* is everything that is computed between a known value, or an output, and the known values and arguments that
it is made of. Errors do not pass from one segment into another. The gradient that arrives at a known value is made by
the segments that read it, its *readers*.

Only floating-point and complex values are followed, because only they have gradients. Values inside a linear solver are
not followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, resolve, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt, sources


class Segment(NamedTuple):
    """A `Segment` has the known values and arguments that it reads, and the values that it makes of them."""

    read: tuple[ValueAt, ...]
    made: tuple[ValueAt, ...]


class SegmentsBetween:
    """`SegmentsBetween` are the segments of a trace between known values.

    Args:
        root: The trace's root frame.
        known: The values that are known, each in one iteration of its loops.
        never_made: The values of branches that did not run, which no segment has.
    """

    def __init__(self, root: Frame, known: Collection[ValueAt], never_made: Collection[ValueAt] = ()) -> None:
        self._frames = {frame.key: frame for frame in root.walk()}
        self._known = frozenset(known)
        self._never_made = frozenset(never_made)

    def readers(self, ends: Iterable[ValueAt]) -> dict[ValueAt, list[ValueAt]]:
        """Returns for each known value and argument the ends of the segments that read it.

        Args:
            ends: Known values and outputs.
        """
        found: dict[ValueAt, list[ValueAt]] = {}
        for end in filter(self._has_gradients, ends):
            for read in self.segment(end).read:
                found.setdefault(read, []).append(end)
        return found

    def segment(self, end: ValueAt) -> Segment:
        """Returns the segment that ends at a known value or an output."""
        seen, waiting = {end}, [end]
        read: list[ValueAt] = []
        made: list[ValueAt] = []
        while waiting:
            made.append(waiting.pop())
            for value_at in self._operands(made[-1]):
                if value_at in seen or value_at in self._never_made:
                    continue
                seen.add(value_at)
                (read if value_at in self._known or _is_argument(value_at) else waiting).append(value_at)
        return Segment(tuple(read), tuple(made))

    def selecting(self, end: ValueAt) -> tuple[ValueAt, ...]:
        """Returns the values without gradients, as masks and indices, that a segment is made with, and are computed.

        Args:
            end: The known value or the output that the segment ends at.
        """
        found: dict[ValueAt, None] = {}
        waiting = list(self.segment(end).made)
        while waiting:
            fresh = (each for each in self._directly(waiting.pop()) if each not in found and self._selects(each))
            waiting += (computed := [each for each in fresh if not _is_argument(each)])
            found |= dict.fromkeys(computed)
        return tuple(found)

    def _operands(self, value_at: ValueAt) -> list[ValueAt]:
        """Returns the values with gradients that a value is directly made of, or is in another frame."""
        return list(filter(self._has_gradients, self._directly(value_at)))

    def _directly(self, value_at: ValueAt) -> list[ValueAt]:
        value, iteration = value_at
        frame = self._frames[value.frame]
        inside = frame.children.get(value.equation, ())
        # Gradients go around a solver: they arrive at what its equation is smooth in, not at what it computes with.
        around = inside[0].transfer.differentiated if inside and inside[0].transfer.gradients == "around" else None
        found = [] if around is not None else sources(self._frames, value_at)
        if not found and value.equation != OPERAND:
            atoms = frame.jaxpr.eqns[value.equation].invars
            read = (resolve(frame, atoms[at]) for at in (range(len(atoms)) if around is None else around))
            found = [ValueAt(key, iteration[: len(self._frames[key.frame].loops)]) for key in read if key is not None]
        return found

    def _has_gradients(self, value_at: ValueAt) -> bool:
        frame = self._frames[value_at.value.frame]
        return is_inexact(variable_of(frame, value_at.value)) and not frame.bypassed

    def _selects(self, value_at: ValueAt) -> bool:
        frame = self._frames[value_at.value.frame]
        return not is_inexact(variable_of(frame, value_at.value)) and not frame.bypassed


def _is_argument(value_at: ValueAt) -> bool:
    return not value_at.value.frame and value_at.value.equation == OPERAND
