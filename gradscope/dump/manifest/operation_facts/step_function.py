"""Defines a step function at which the gradient of a tensor's own elements ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """A `StepFunction` is constant wherever it has a derivative, and all that the loss makes of a tensor's elements.

    Attributes:
        family: str of the tensor that it reads, element by element: `param` or `activation`.
        name: The tensor's name.
        primitive: The primitive: `round`, `floor`, `ceil`, `sign`, a cast to integers, a comparison such as `gt`,
            or a choice such as `argmin`.
        beside: The reductions of the tensor by which alone a gradient arrives, such as the `reduce_max` of a scale or
            the `reduce_sum` of a penalty.
        source: `file:line` in the user's code; None where unknown.
    """

    family: str
    name: str
    primitive: str
    beside: tuple[str, ...]
    source: str | None = None
