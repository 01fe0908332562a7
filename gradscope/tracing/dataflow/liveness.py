"""Which equations the loss depends on, and which anything depends on at all.

A traced loss may compute more than the loss: updated batch statistics, metrics, values nobody reads. An equation is
*live* when the loss depends on one of its outputs, *used* when anything does that the function returns. The rule is
that of dead code elimination: needed outputs make an equation live, and a live equation makes its operands needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from gradscope.tracing.dataflow.backward import Marks, follow, follow_inside
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal


class Need(IntEnum):
    """What depends on a value; where several things do, the greatest."""

    NOTHING = 0
    OUTPUT = 1
    LOSS = 2


def mark_live(root: Frame) -> None:
    """Mark what the root's outputs depend on, the first of which is the loss, in the root and in all frames inside."""
    follow(root, [Need.LOSS, *[Need.OUTPUT] * (len(root.jaxpr.outvars) - 1)], _Liveness(Marks()))


def mark_needed(root: Frame, outputs: Sequence[bool], marks: Marks) -> list[bool]:
    """Mark as used what some outputs and some values inside depend on.

    Args:
        root: The root frame, nothing marked yet.
        outputs: For each output, whether it is needed.
        marks: Further values that are needed, and those that are given.

    Returns:
        For each variable that the root receives, whether it is needed.
    """
    levels = [Need.OUTPUT if needed else Need.NOTHING for needed in outputs]
    return [level != Need.NOTHING for level in follow(root, levels, _Liveness(marks))]


class _Liveness:
    """Follows what is needed: levels are those of `Need`."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def through(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        inside = frame.children.get(number, ())
        need = max(*outputs, self.marks.level_inside(inside), Need.NOTHING)
        operands = len(frame.jaxpr.eqns[number].invars)
        if need == Need.NOTHING:
            return [Need.NOTHING] * operands
        frame.used.add(number)
        if need == Need.LOSS:
            frame.live.add(number)
        if inside and inside[0].kind not in ("while", "opaque"):
            return follow_inside(frame, number, outputs, self)
        for child in inside:  # taken as a whole
            follow(child, [need] * len(child.jaxpr.outvars), self)
        return [need] * operands

    def leave(self, frame: Frame, outputs: Sequence[int], _levels: dict[Atom, int]) -> None:
        atoms = zip(frame.jaxpr.outvars, outputs, strict=True)
        frame.needed_outputs |= {atom for atom, need in atoms if need == Need.LOSS and not is_literal(atom)}
