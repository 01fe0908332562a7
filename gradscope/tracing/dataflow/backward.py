"""Flow: following values backwards from a function's outputs, through every frame, to what they are made from.

What is followed has a *level*: 0 for a value that nothing followed is made from, higher the more is known of it. An
*analysis* says what passes through one equation; how frames hand it on is the same for all: a branch is taken for
certain, a carry is followed until no more comes of another turn.

*Marks* are where else than at the outputs a flow begins, and where it ends: a value whose gradient is asked of another
value than the loss, a value that counts as constant, a value that is given and not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, variable_of
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal, scan_arity


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Where a flow begins besides at a function's outputs, and where it ends.

    Attributes:
        seeds: The level of values that are followed from where they are.
        cuts: Values that are reached, and whose makers are not.
    """

    seeds: Mapping[ValueKey, int] = field(default_factory=dict[ValueKey, int])
    cuts: frozenset[ValueKey] = frozenset()
    _inside: dict[FrameKey, int] = field(default_factory=dict[Any, int])

    def __post_init__(self) -> None:
        for value, level in self.seeds.items():
            for depth in range(len(value.frame) + 1):
                around = value.frame[:depth]
                self._inside[around] = max(level, self._inside.get(around, 0))

    def level_inside(self, frames: Sequence[Frame]) -> int:
        """The highest level that is seeded in some frames or inside them."""
        return max((self._inside.get(frame.key, 0) for frame in frames), default=0)

    def seeded(self, frame: Frame) -> tuple[list[Atom], list[int]]:
        """The variables of one frame that are seeded, and their levels."""
        if frame.key not in self._inside:
            return [], []
        own = [(value, level) for value, level in self.seeds.items() if value.frame == frame.key]
        return [variable_of(frame, value) for value, _ in own], [level for _, level in own]

    def passed(self, frame: Frame, equation: int, levels: list[int]) -> list[int]:
        """The levels of what an equation makes, or of what its frame receives, without those that are cut."""
        if not self.cuts:
            return levels
        return [
            0 if ValueKey(frame.key, equation, position) in self.cuts else level
            for position, level in enumerate(levels)
        ]


class Analysis(Protocol):
    """What is followed. Frames may be visited several times, each time with no lower levels than before."""

    marks: Marks

    def through(self, frame: Frame, number: int, outputs: Sequence[int], /) -> Sequence[int]:
        """The levels of an equation's operands by those of its outputs."""
        ...

    def leave(self, frame: Frame, outputs: Sequence[int], levels: dict[Atom, int], /) -> None:
        """A frame has been followed from the levels of its outputs; `levels` has every variable above 0."""
        ...


def follow(frame: Frame, outputs: Sequence[int], analysis: Analysis) -> list[int]:
    """Follow a frame's outputs back to what the frame receives.

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
    """Follow an equation's outputs back to its operands, through the frames that it runs.

    Args:
        frame: The frame the equation is in.
        number: Its number; the kind of frames it runs is not `opaque`.
        outputs: The level of each of its outputs.
        analysis: What is followed.

    Returns:
        The level of each of its operands.
    """
    equation = frame.jaxpr.eqns[number]
    inside = frame.children[number]
    if inside[0].kind == "cond":
        branches = [follow(branch, outputs, analysis) for branch in inside]
        return [max(outputs, default=0), *map(max, zip(*branches, strict=True))]
    if inside[0].kind == "scan":
        arity = scan_arity(equation)
        return _follow_turns(inside[0], arity.constants, arity.carries, outputs, analysis)
    if inside[0].kind == "while":
        of_condition, of_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        return [0] * of_condition + _follow_turns(inside[0], of_body, len(outputs), outputs, analysis)
    return follow(inside[0], outputs, analysis)


def _follow_turns(body: Frame, constants: int, carries: int, outputs: Sequence[int], analysis: Analysis) -> list[int]:
    last, stacked = list(outputs[:carries]), outputs[carries:]
    while True:
        operands = follow(body, [*last, *stacked], analysis)
        # A carry that is followed after the loop is followed before it, whether or not a turn reads it.
        grown = list(map(max, last, operands[constants : constants + carries]))
        if grown == last:
            return [*operands[:constants], *grown, *operands[constants + carries :]]
        last = grown
