"""Defines the operation in which a NaN or an infinity first arose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gradscope.naming import IterationIndex

#: The repair where what a run is given is not finite: an input, a parameter, a state.
OF_GIVEN_VALUES: Final = "look at where it comes from: the data, the checkpoint, the step before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An `Origin` is the operation in which a NaN or an infinity first arose.

    Attributes:
        direction: `forward` where the result is not finite although the operands are; `backward` likewise of gradients.
        name: Path of the operation, or of an argument that was not finite before the run.
        layer: Path of the layer that the operation is in; None outside all layers, and of an argument.
        why: The reason with its numbers, as the predicate of a sentence without a full stop.
        repair: A suggested repair; "" where there is no general one.
        primitive: The operation's primitive; None for an argument.
        source: `file:line` in the user's code; None where unknown.
        iteration: Index per enclosing loop, outermost first.
        index: Index of the first such element in the result, or in the operand's gradient.
        operands: Values of the forward operands for that element.
    """

    direction: Literal["forward", "backward"]
    name: str
    why: str
    layer: str | None = None
    repair: str = ""
    primitive: str | None = None
    source: str | None = None
    iteration: IterationIndex = ()
    index: tuple[int, ...] = ()
    operands: tuple[float, ...] = ()
