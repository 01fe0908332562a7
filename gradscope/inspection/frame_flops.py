"""The floating-point operations of a whole frame, and which of an equation's frames count how often."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.inspection.flops import flops_of, has_own_cost
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.jaxpr.frames import Frame


def program_flops(frame: Frame, liveness: Liveness) -> int:
    """The operations that a frame's used equations take, those of a loop once for each iteration."""
    return sum(_equation_flops(frame, number, liveness) for number in liveness.used(frame))


def _equation_flops(frame: Frame, number: int, liveness: Liveness) -> int:
    inside = counted_frames(frame, number, liveness)
    if not inside:
        return flops_of(frame.jaxpr.eqns[number])
    return sum(program_flops(child, liveness) * turns_of(child) for child in inside)


def counted_frames(frame: Frame, number: int, liveness: Liveness) -> Sequence[Frame]:
    """The frames whose operations are an equation's; of branches the dearest, none where it has a cost of its own."""
    inside = frame.children.get(number, [])
    if not inside or has_own_cost(frame.jaxpr.eqns[number]):
        return []
    if not inside[0].transfer.exclusive:
        return inside
    return [max(inside, key=lambda branch: program_flops(branch, liveness))]


def turns_of(frame: Frame) -> int:
    """How often a frame runs when its equation does; 1 where only running tells."""
    if frame.parent is None or len(frame.loops) == len(frame.parent.loops):
        return 1
    length = frame.loops[-1].length
    return 1 if length is None else length
