"""A program's floating-point operations are those of its frames, each counted as often as it runs."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.inspection.flops import flops_of, has_own_cost
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.jaxpr.frames import Frame


def program_flops(frame: Frame, liveness: Liveness) -> int:
    """Returns the operations of a frame's used equations, with every iteration of its loops."""
    return sum(_equation_flops(frame, number, liveness) for number in liveness.used(frame))


def _equation_flops(frame: Frame, number: int, liveness: Liveness) -> int:
    inside = counted_frames(frame, number, liveness)
    if not inside:
        return flops_of(frame.jaxpr.eqns[number])
    return sum(program_flops(child, liveness) * iterations_of(child) for child in inside)


def counted_frames(frame: Frame, number: int, liveness: Liveness) -> Sequence[Frame]:
    """Returns the frames whose operations count as an equation's: of branches the most expensive.

    Empty where the cost of the equation follows from its primitive.
    """
    inside = frame.children.get(number, [])
    if not inside or has_own_cost(frame.jaxpr.eqns[number]):
        return []
    if not inside[0].transfer.exclusive:
        return inside
    return [max(inside, key=lambda branch: program_flops(branch, liveness))]


def iterations_of(frame: Frame) -> int:
    """Returns how often a frame runs when its equation does; 1 for loops of unknown length."""
    if frame.parent is None or len(frame.loops) == len(frame.parent.loops):
        return 1
    length = frame.loops[-1].length
    return 1 if length is None else length
