"""Where a loop's values come from: what a body receives in one turn, and what an equation with a body hands out.

Inside its frame, the carry that a turn of a `scan` receives is a value of its own, and so is what the whole `scan`
hands out. Yet a turn's carry is what the turn before made, or what went into the loop; the last turn's carry is what
comes out. That way values of one turn are followed into another, and into and out of loops and branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, operands, region, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, scan_arity


class Moment(NamedTuple):
    """A value in one turn of the loops around it."""

    value: ValueKey
    turn: tuple[int, ...]


def sources(frames: Mapping[FrameKey, Frame], moment: Moment) -> list[Moment]:
    """What a value is, or is cut or put together from, elsewhere; empty where an equation computes it.

    Args:
        frames: Every frame of a trace.
        moment: The value. Of a `while` only what goes in and comes out is known, not what passes between its turns.
    """
    frame = frames[moment.value.frame]
    found = _received(frame, moment) if moment.value.equation == OPERAND else _handed_out(frame, moment)
    return list(found)


class Homes:
    """The moments in which values were made that loops have carried on to others.

    Args:
        frames: Every frame of a trace.
    """

    def __init__(self, frames: Mapping[FrameKey, Frame]) -> None:
        self._frames = frames
        self._known: dict[Moment, Moment] = {}

    def of(self, moment: Moment) -> Moment:
        """The moment in which a value was made; the same where no loop has carried it."""
        way = [moment]
        while (before := self._known.get(way[-1]) or _carried_from(self._frames, way[-1])) is not None:
            way.append(before)
        self._known.update(dict.fromkeys(way[:-1], way[-1]))
        return way[-1]


def _carried_from(frames: Mapping[FrameKey, Frame], moment: Moment) -> Moment | None:
    """Where a loop took a carry from; None for what is none, and for what a loop or branch around has handed in."""
    frame = frames[moment.value.frame]
    if not is_carry(frame, moment.value):
        return None
    found = sources(frames, moment)
    if moment.value.equation != OPERAND:
        frame = frame.children[moment.value.equation][0]
    elif frame.parent is not None and _turn_before(frame, moment) is None:
        frame = frame.parent
    return found[0] if len(found) == 1 and region(frames[found[0].value.frame]) == region(frame) else None


def is_carry(frame: Frame, value: ValueKey) -> bool:
    """Whether a value of a frame is one that a `scan` of at least one turn hands from turn to turn, or out at last."""
    bodies = [frame] if value.equation == OPERAND else frame.children.get(value.equation, [])
    if not bodies or bodies[0].kind != "scan" or bodies[0].equation is None or not bodies[0].loops[-1].length:
        return False
    arity = scan_arity(bodies[0].equation)
    first = arity.constants if value.equation == OPERAND else 0
    return first <= value.position < first + arity.carries


def _received(frame: Frame, moment: Moment) -> Iterator[Moment]:
    """Where a frame's operand comes from; the root's come from nowhere."""
    if frame.parent is None or frame.kind == "opaque":
        return
    looped = frame.kind in ("scan", "while", "shard_map")
    outside = moment.turn[:-1] if looped else moment.turn
    before = _turn_before(frame, moment)
    atom = operands(frame)[moment.value.position]
    if before is not None:
        yield from _moment(frame, *before)
    elif atom is not None:
        yield from _moment(frame.parent, atom, outside)


def _turn_before(frame: Frame, moment: Moment) -> tuple[Atom, tuple[int, ...]] | None:
    """For a carry in a turn that is not the first, the body's output that it is, and the turn that made it."""
    if frame.kind != "scan" or frame.equation is None:
        return None
    arity, loop = scan_arity(frame.equation), frame.loops[-1]
    carry = moment.value.position - arity.constants
    turn = moment.turn[-1]
    first = (loop.length or 1) - 1 if loop.backwards else 0
    if not 0 <= carry < arity.carries or turn == first:
        return None
    return frame.jaxpr.outvars[carry], (*moment.turn[:-1], turn + 1 if loop.backwards else turn - 1)


def _handed_out(frame: Frame, moment: Moment) -> Iterator[Moment]:
    """What the bodies of an equation make of what it hands out."""
    position = moment.value.position
    for body in frame.children.get(moment.value.equation, ()):
        if body.kind != "opaque":
            for turn in _last_turns(body, position):
                yield from _moment(body, body.jaxpr.outvars[position], (*moment.turn, *turn))


def _last_turns(body: Frame, position: int) -> Iterator[tuple[int, ...]]:
    """The turns of a body whose output an equation hands out at one position: the last for a carry, all for a stack."""
    if body.kind not in ("scan", "while", "shard_map"):
        yield ()
        return
    loop = body.loops[-1]
    length = loop.length if loop.length is not None else 1
    carried = body.kind == "scan" and body.equation is not None and position < scan_arity(body.equation).carries
    if carried and length:
        yield (0 if loop.backwards else length - 1,)
    else:
        yield from ((turn,) for turn in range(length))


def _moment(frame: Frame, atom: Atom, turn: tuple[int, ...]) -> Iterator[Moment]:
    """An atom of a frame as a moment; nothing for a literal."""
    value = resolve(frame, atom)
    if value is not None:
        depth = len(value.frame)
        yield Moment(value, turn if depth >= len(frame.key) else turn[: _loops_at(frame, value)])


def _loops_at(frame: Frame, value: ValueKey) -> int:
    """The number of loops around a value that lies in a frame around this one."""
    around: Frame | None = frame
    while around is not None and around.key != value.frame:
        around = around.parent
    return 0 if around is None else len(around.loops)
