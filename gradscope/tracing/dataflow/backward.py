"""Backward dataflow follows values from a function's outputs, through every frame, to what they are made from.

Each value has a *level*: 0 for a value that nothing followed is made from, higher the more is known of it. An
*analysis* states which levels pass through one equation. How levels pass through frames is the same for all analyses:
every branch counts as taken, and a carry is followed until another iteration changes nothing.

*Marks* state where an analysis begins other than at the outputs, and where it ends: at a value that is differentiated
in place of the loss, a value that counts as constant, or a value that is fed and not computed. Where they are in single
iterations, iterations are followed one by one, from the last to the first; those that are alike are followed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradscope.naming import IterationIndex
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """`Marks` state where an analysis begins other than at a function's outputs, and where it ends.

    Attributes:
        seeds: The level of values that are followed from where they are.
        cuts: Values that are reached, and whose makers are not.
        seeded_at: The seeds with the iterations in which they are; None for all.
        cut_at: Further cuts, each in one iteration.
        here: The iteration of the loops around the frame that is being followed, where iterations are told apart.
        alike: For the body of a loop and an iteration, the one before it that has the same levels.
    """

    seeds: Mapping[ValueKey, int] = field(default_factory=dict[ValueKey, int])
    cuts: frozenset[ValueKey] = frozenset()
    seeded_at: frozenset[ValueAt] | None = None
    cut_at: frozenset[ValueAt] = frozenset()
    here: list[int] = field(default_factory=list[int])
    alike: dict[tuple[FrameKey, IterationIndex], IterationIndex] = field(default_factory=dict[Any, Any])
    _marked: set[IterationIndex] = field(default_factory=set[IterationIndex])
    _inside: dict[FrameKey, int] = field(default_factory=dict[Any, int])

    def __post_init__(self) -> None:
        for value, level in self.seeds.items():
            for depth in range(len(value.frame) + 1):
                around = value.frame[:depth]
                self._inside[around] = max(level, self._inside.get(around, 0))
        for _, iteration in (*(self.seeded_at or ()), *self.cut_at):
            self._marked.update(iteration[:depth] for depth in range(len(iteration) + 1))

    @property
    def iteration(self) -> IterationIndex:
        """The iteration that is being followed."""
        return tuple(self.here)

    @property
    def marked_here(self) -> bool:
        """Whether there may be a mark in the iteration that is being followed."""
        return self.iteration in self._marked

    def level_inside(self, frames: Sequence[Frame]) -> int:
        """Returns the highest level that is seeded in some frames or inside them."""
        return max((self._inside.get(frame.key, 0) for frame in frames), default=0)

    def seeded(self, frame: Frame) -> tuple[list[Atom], list[int]]:
        """Returns the variables of one frame that are seeded, and their levels."""
        if frame.key not in self._inside:
            return [], []
        here, at = self.iteration, self.seeded_at
        own = [
            (value, level)
            for value, level in self.seeds.items()
            if value.frame == frame.key and (at is None or ValueAt(value, here) in at)
        ]
        return [variable_of(frame, value) for value, _ in own], [level for _, level in own]

    def passed(self, frame: Frame, equation: int, levels: list[int]) -> list[int]:
        """Returns the levels of an equation's outputs, or of what its frame receives, without those that are cut."""
        if not (self.cuts or self.cut_at):
            return levels
        made = [ValueKey(frame.key, equation, position) for position in range(len(levels))]
        here = self.iteration
        cut = [value in self.cuts or ValueAt(value, here) in self.cut_at for value in made]
        return [0 if is_cut else level for is_cut, level in zip(cut, levels, strict=True)]


class Analysis(Protocol):
    """An `Analysis` may visit a frame several times, each time with no lower levels than before."""

    marks: Marks

    def through(self, frame: Frame, number: int, outputs: Sequence[int], /) -> Sequence[int]:
        """Returns the levels of an equation's operands from those of its outputs."""
        ...

    def leave(self, frame: Frame, outputs: Sequence[int], levels: dict[Atom, int], /) -> None:
        """Records a frame that has been followed from its outputs' levels; `levels` has every variable above 0."""
        ...


def follow(frame: Frame, outputs: Sequence[int], analysis: Analysis) -> list[int]:
    """Follows a frame's outputs back to the variables that the frame receives.

    Args:
        frame: The frame.
        outputs: The level of each output of its jaxpr.
        analysis: What is followed.

    Returns:
        The level of each variable that the frame receives.
    """
    levels: dict[Atom, int] = {}

    def raise_levels(atoms: Sequence[Atom], to: Sequence[int]) -> None:
        for atom, level in zip(atoms, to, strict=True):
            if level and not is_literal(atom):
                levels[atom] = max(level, levels.get(atom, 0))

    raise_levels(frame.jaxpr.outvars, outputs)
    raise_levels(*analysis.marks.seeded(frame))
    for number in reversed(range(len(frame.jaxpr.eqns))):
        equation = frame.jaxpr.eqns[number]
        made = analysis.marks.passed(frame, number, [levels.get(variable, 0) for variable in equation.outvars])
        raise_levels(equation.invars, analysis.through(frame, number, made))
    analysis.leave(frame, outputs, levels)
    return analysis.marks.passed(frame, OPERAND, [levels.get(variable, 0) for variable in frame.jaxpr.invars])


def follow_inside(frame: Frame, number: int, outputs: Sequence[int], analysis: Analysis) -> list[int]:
    """Follows an equation's outputs back to its operands, through the frames that it runs.

    Args:
        frame: The frame the equation is in.
        number: Its number; the frames it runs are not opaque.
        outputs: The level of each of its outputs.
        analysis: What is followed.

    Returns:
        The level of each of its operands.
    """
    operands = [0] * len(frame.jaxpr.eqns[number].invars)
    for child in frame.children[number]:
        for predicate in child.transfer.predicates:
            operands[predicate] = max(outputs, default=0)
        for entry, level in zip(child.transfer.inputs, _follow_iterations(child, outputs, analysis), strict=True):
            if entry is not None:
                operands[entry.operand] = max(level, operands[entry.operand])
    return operands


def _follow_iterations(body: Frame, outputs: Sequence[int], analysis: Analysis) -> list[int]:
    """Follows a frame's outputs to what it receives, and from the carries of one iteration to those before."""
    loop = body.transfer.loop
    if loop is not None and loop.length is not None and analysis.marks.seeded_at is not None:
        return _follow_each_iteration(body, outputs, analysis, loop.length)
    made = list(outputs)
    while True:
        received = follow(body, made, analysis)
        # A carry that is followed after the loop is followed before it, whether or not an iteration reads it.
        carries = [(at, n) for at in range(len(made)) if (n := body.transfer.next_variable(at)) is not None]
        grown = list(made)
        for output, variable in carries:
            grown[output] = received[variable] = max(made[output], received[variable])
        if grown == made:
            return received
        made = grown


def _follow_each_iteration(body: Frame, outputs: Sequence[int], analysis: Analysis, length: int) -> list[int]:
    """Follows a loop's outputs through its iterations, from the last that runs to the first."""
    marks, made = analysis.marks, list(outputs)
    carries = [(at, n) for at in range(len(made)) if (n := body.transfer.next_variable(at)) is not None]
    received = [0] * len(body.jaxpr.invars)
    known: dict[tuple[int, ...], tuple[list[int], IterationIndex]] = {}
    is_reverse = body.transfer.loop is not None and body.transfer.loop.reverse
    for number in range(length) if is_reverse else reversed(range(length)):
        marks.here.append(number)
        state = tuple(made)
        if marks.marked_here or state not in known:
            levels = follow(body, made, analysis)
            if not marks.marked_here:
                known[state] = levels, marks.iteration
        else:
            levels, marks.alike[body.key, marks.iteration] = known[state]
        marks.here.pop()
        received = list(map(max, received, levels))
        for output, variable in carries:
            made[output] = levels[variable]
    for output, variable in carries:
        received[variable] = made[output]
    return received
