"""A loop's values differ by iteration: those that its body receives, and the body outputs that it returns.

Inside its frame, the carry that an iteration of a `scan` receives is a value of its own, and so is the output of the
`scan`. However, the carry of an iteration equals the output of the iteration before, or the loop's initial carry, and
the carry of the last iteration equals the loop's output. This module follows values from one iteration to another,
and into and out of loops and branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, operands, region, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom


class ValueAt(NamedTuple):
    """A `ValueAt` is a value in one iteration of the loops around it."""

    value: ValueKey
    iteration: tuple[int, ...]


def sources(frames: Mapping[FrameKey, Frame], at: ValueAt) -> list[ValueAt]:
    """Returns the values in other frames that a value is, or is sliced or stacked from; empty if an equation makes it.

    Args:
        frames: Every frame of a trace.
        at: The value. Of a `while` only the operands and outputs are known, not what passes between its iterations.
    """
    frame = frames[at.value.frame]
    found = _received(frame, at) if at.value.equation == OPERAND else _returned(frame, at)
    return list(found)


class CarryOrigins:
    """`CarryOrigins` maps values that loops carry to the iteration in which each was made.

    Args:
        frames: Every frame of a trace.
    """

    def __init__(self, frames: Mapping[FrameKey, Frame]) -> None:
        self._frames = frames
        self._known: dict[ValueAt, ValueAt] = {}

    def of(self, at: ValueAt) -> ValueAt:
        """Returns the value where it was made, which is itself where no loop has carried it."""
        way = [at]
        while (before := self._known.get(way[-1]) or _carried_from(self._frames, way[-1])) is not None:
            way.append(before)
        self._known.update(dict.fromkeys(way[:-1], way[-1]))
        return way[-1]


def _carried_from(frames: Mapping[FrameKey, Frame], at: ValueAt) -> ValueAt | None:
    """Returns the value that a carry comes from; None for no carry, or one that an outer loop or branch passes in."""
    frame = frames[at.value.frame]
    if not is_carry(frame, at.value):
        return None
    found = sources(frames, at)
    if at.value.equation != OPERAND:
        frame = frame.children[at.value.equation][0]
    elif frame.parent is not None and _iteration_before(frame, at) is None:
        frame = frame.parent
    return found[0] if len(found) == 1 and region(frames[found[0].value.frame]) == region(frame) else None


def is_carry(frame: Frame, value: ValueKey) -> bool:
    """Returns whether a value of a frame is a carry of the loop that runs the frame, or of a loop that the frame runs.

    Loops that may run no iteration, such as a `while`, do not count.
    """
    bodies = [frame] if value.equation == OPERAND else frame.children.get(value.equation, [])
    if not bodies or bodies[0].transfer.loop is None or not bodies[0].transfer.loop.length:
        return False
    transfer = bodies[0].transfer
    if value.equation == OPERAND:
        return transfer.is_carry(value.position)
    return transfer.next_variable(value.position) is not None


def _received(frame: Frame, at: ValueAt) -> Iterator[ValueAt]:
    """Yields the values that a variable which a frame receives comes from; none for the root's."""
    atom = operands(frame)[at.value.position]
    if frame.parent is None or atom is None:
        return
    before = _iteration_before(frame, at)
    if before is not None:
        yield from values_at(frame, *before)
    else:
        yield from values_at(frame.parent, atom, at.iteration if frame.transfer.loop is None else at.iteration[:-1])


def _iteration_before(frame: Frame, at: ValueAt) -> tuple[Atom, tuple[int, ...]] | None:
    """Returns, for a carry in a later iteration than the first, the body's output that it is, with its iteration."""
    output, loop = frame.transfer.output_before(at.value.position), frame.transfer.loop
    if output is None or loop is None or loop.length is None:
        return None
    *around, here = at.iteration
    if here == (max(loop.length, 1) - 1 if loop.reverse else 0):
        return None
    return frame.jaxpr.outvars[output], (*around, here + 1 if loop.reverse else here - 1)


def _returned(frame: Frame, at: ValueAt) -> Iterator[ValueAt]:
    """Yields the outputs of an equation's bodies that one of its outputs is, or is stacked from."""
    position = at.value.position
    for body in frame.children.get(at.value.equation, ()):
        if body.transfer.outputs[position:] and body.transfer.outputs[position] is not None:
            for iteration in _last_iterations(body, position):
                yield from values_at(body, body.jaxpr.outvars[position], (*at.iteration, *iteration))


def _last_iterations(body: Frame, position: int) -> Iterator[tuple[int, ...]]:
    """Yields the iterations whose output an equation returns at a position: the last for a carry, all for a stack."""
    loop = body.transfer.loop
    if loop is None:
        yield ()
        return
    length = loop.length if loop.length is not None else 1
    if length and body.transfer.outputs[position] == "carry":
        yield (0 if loop.reverse else length - 1,)
    else:
        yield from ((iteration,) for iteration in range(length))


def values_at(frame: Frame, atom: Atom, iteration: tuple[int, ...]) -> Iterator[ValueAt]:
    """Yields the value of an atom of a frame in one iteration; nothing for a literal."""
    value = resolve(frame, atom)
    if value is not None:
        depth = len(value.frame)
        yield ValueAt(value, iteration if depth >= len(frame.key) else iteration[: _loops_at(frame, value)])


def _loops_at(frame: Frame, value: ValueKey) -> int:
    """Returns the number of loops around a value that is in a frame around this one."""
    around: Frame | None = frame
    while around is not None and around.key != value.frame:
        around = around.parent
    return 0 if around is None else len(around.loops)
