"""`stacked_steps` does to every slice of some tensors along a first axis what steps do to a tensor without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    Flip,
    Mean,
    RecipeStep,
    Reorder,
    Reshape,
    ReshapeEach,
    Split,
    Stack,
    Sum,
    Transpose,
    Unstack,
)


def stacked_steps(steps: Iterable[RecipeStep], count: int) -> tuple[RecipeStep, ...]:
    """Returns the steps that do to tensors with another axis in front what some steps do to each of their slices.

    Args:
        steps: The steps for a slice, whose axes are counted from the first one.
        count: The size of the axis in front.
    """
    return tuple(_stacked(step, count) for step in steps)


def _stacked(step: RecipeStep, count: int) -> RecipeStep:
    match step:
        case Reshape(shape):
            return Reshape((count, *shape))
        case ReshapeEach(shapes):
            return ReshapeEach(tuple((count, *shape) for shape in shapes))
        case Transpose(axes):
            return Transpose((0, *(axis + 1 for axis in axes)))
        case Flip(axes):
            return Flip(tuple(axis + 1 for axis in axes))
        case Split() | Unstack() | Concatenate() | Stack() | Sum() | Mean():
            return replace(step, axis=step.axis + 1)
        case Reorder():
            return step
        case _:
            raise AssertionError(f"no step: {step}")
