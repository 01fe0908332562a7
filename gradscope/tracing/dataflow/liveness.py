"""Liveness states which equations the loss depends on, and which any output depends on at all.

A traced loss may compute more than the loss: updated batch statistics, metrics, values that nothing reads. An equation
is *live* when the loss depends on one of its outputs, *used* when any output of the function does. The rule is that of
dead code elimination: needed outputs make an equation live, and a live equation makes its operands needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from gradscope.tracing.dataflow.backward import Marks, follow, follow_inside
from gradscope.tracing.jaxpr.frames import Frame, FrameKey
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal


class Need(IntEnum):
    """A `Need` states what depends on a value; of several, the greatest."""

    NOTHING = 0
    OUTPUT = 1
    LOSS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """`Liveness` states which equations of a frame and of all frames inside it are live, and which are used.

    Attributes:
        arguments: For each variable that the root receives, whether anything needed depends on it.
    """

    arguments: tuple[bool, ...]
    _live: dict[FrameKey, set[int]] = field(default_factory=dict[FrameKey, "set[int]"])
    _used: dict[FrameKey, set[int]] = field(default_factory=dict[FrameKey, "set[int]"])
    _outputs: dict[FrameKey, set[Atom]] = field(default_factory=dict[FrameKey, "set[Atom]"])

    def live(self, frame: Frame) -> Collection[int]:
        """Returns the equations of a frame that the loss depends on."""
        return self._live.get(frame.key, ())

    def used(self, frame: Frame) -> Collection[int]:
        """Returns the equations of a frame that anything needed depends on."""
        return self._used.get(frame.key, ())

    def live_outputs(self, frame: Frame) -> Collection[Atom]:
        """Returns the outputs of a frame's jaxpr that the loss depends on."""
        return self._outputs.get(frame.key, ())


def liveness_of(root: Frame) -> Liveness:
    """Returns the liveness for the root's outputs, the first of which is the loss."""
    return _liveness(root, [Need.LOSS, *[Need.OUTPUT] * (len(root.jaxpr.outvars) - 1)], Marks())


def needed_for(root: Frame, outputs: Sequence[bool], marks: Marks) -> Liveness:
    """Returns the liveness for some outputs and some values inside, none of which is the loss.

    Args:
        root: The root frame.
        outputs: For each output, whether it is needed.
        marks: Further values that are needed, and those that are fed.
    """
    return _liveness(root, [Need.OUTPUT if needed else Need.NOTHING for needed in outputs], marks)


def _liveness(root: Frame, outputs: Sequence[Need], marks: Marks) -> Liveness:
    analysis = _Analysis(marks)
    levels = follow(root, outputs, analysis)
    arguments = tuple(level != Need.NOTHING for level in levels)
    return Liveness(arguments=arguments, _live=analysis.live, _used=analysis.used, _outputs=analysis.outputs)


class _Analysis:
    """An `_Analysis` follows needed values: levels are those of `Need`."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.live: dict[FrameKey, set[int]] = {}
        self.used: dict[FrameKey, set[int]] = {}
        self.outputs: dict[FrameKey, set[Atom]] = {}

    def through(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        inside = frame.children.get(number, ())
        need = max(*outputs, self.marks.level_inside(inside), Need.NOTHING)
        operands = len(frame.jaxpr.eqns[number].invars)
        if need == Need.NOTHING:
            return [Need.NOTHING] * operands
        self.used.setdefault(frame.key, set()).add(number)
        if need == Need.LOSS:
            self.live.setdefault(frame.key, set()).add(number)
        if inside and inside[0].transfer.gradients == "through":
            return follow_inside(frame, number, outputs, self)
        for child in inside:  # it runs with all its outputs, whichever are needed
            follow(child, [need] * len(child.jaxpr.outvars), self)
        return [need] * operands

    def leave(self, frame: Frame, outputs: Sequence[int], _levels: dict[Atom, int]) -> None:
        atoms = zip(frame.jaxpr.outvars, outputs, strict=True)
        needed = {atom for atom, need in atoms if need == Need.LOSS and not is_literal(atom)}
        self.outputs.setdefault(frame.key, set()).update(needed)
