"""The floating-point operations of a whole frame, and which of an equation's frames count how often."""

from __future__ import annotations

from gradscope.inspection.flops import flops_of, has_own_cost
from gradscope.tracing.jaxpr.frames import Frame


def program_flops(frame: Frame) -> int:
    """The operations that a frame's used equations take, each loop's turn by turn."""
    return sum(_equation_flops(frame, number) for number in frame.used)


def _equation_flops(frame: Frame, number: int) -> int:
    inside = counted_frames(frame, number)
    if not inside:
        return flops_of(frame.jaxpr.eqns[number])
    return sum(program_flops(child) * turns_of(child) for child in inside)


def counted_frames(frame: Frame, number: int) -> list[Frame]:
    """The frames whose operations are an equation's; of branches the dearest, none where it has a cost of its own."""
    inside = frame.children.get(number, [])
    if not inside or has_own_cost(frame.jaxpr.eqns[number]):
        return []
    return [max(inside, key=program_flops)] if inside[0].kind == "cond" else inside


def turns_of(frame: Frame) -> int:
    """How often a frame runs when its equation does; 1 where only running tells."""
    if frame.parent is None or len(frame.loops) == len(frame.parent.loops):
        return 1
    length = frame.loops[-1].length
    return 1 if length is None else length
