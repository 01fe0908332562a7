"""`JoinedParts` stores which tensors are joined in another one, in which order, and how their axes are arranged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.axis_orders import Shape
from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    RecipeStep,
    Reshape,
    ReshapeEach,
    Split,
    Stack,
    Transpose,
    Unstack,
    in_order_of_blocks,
)
from gradscope.comparison.pairing.matching import MatchedBy


class JoinedAxes(NamedTuple):
    """JoinedAxes has the order of a part's axes in a packed tensor.

    Attributes:
        order: The order.
        apart: The shape in that order of parts that have an axis more, for the heads; () of other parts.
        shape: The same with that axis merged into the next one.
    """

    order: tuple[int, ...]
    apart: Shape = ()
    shape: Shape = ()

    def of(self, array: Array) -> Array:
        """Returns a part with its axes in the order of the packed tensor."""
        ordered = array.transpose(self.order)
        return ordered.reshape(self.shape) if self.apart else ordered

    def steps(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that put the axes of a part into order."""
        return (*_turned(self.order), *((Reshape(self.shape),) if self.apart else ()))

    def inverse(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that put them back."""
        back = tuple(np.argsort(self.order).tolist())
        return (*((Reshape(self.apart),) if self.apart else ()), *_turned(back))


class PlainShape(NamedTuple):
    """PlainShape has the shape of a tensor as stored, and without axes of one element."""

    stored: Shape
    plain: Shape

    def steps(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that leave out the axes."""
        return (Reshape(self.plain),) if self.stored != self.plain else ()

    def inverse(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that put them back."""
        return (Reshape(self.stored),) if self.stored != self.plain else ()


class PlainShapes(NamedTuple):
    """PlainShapes has the shapes of several tensors as stored, and one without axes of one element that all can have.

    Attributes:
        stored: The shape of each; one for all, -1 where their sizes differ, where it is a reshape of all of them.
        plain: The shape that a reshape gives each; -1 where the sizes differ.
    """

    stored: tuple[Shape, ...]
    plain: Shape

    @classmethod
    def of(cls, parts: Sequence[tuple[Shape, Shape]]) -> PlainShapes | None:
        """Returns the shapes; None where no one reshape makes the plain ones.

        Args:
            parts: The shape of each tensor as it is stored, and without axes of one element, or with one along which
                they are joined.
        """
        stored, plain = [own for own, _ in parts], _sizes_of_all([each for _, each in parts])
        if plain.count(-1) > 1:
            return None
        if len({*map(len, stored)}) > 1:
            return cls(tuple(stored), plain)
        return cls((known,), plain) if (known := _sizes_of_all(stored)).count(-1) <= 1 else None

    def steps(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the plain shapes."""
        return (Reshape(self.plain),) if self.stored != (self.plain,) else ()

    def inverse(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the shapes as stored."""
        first, *others = self.stored
        if others:
            return (ReshapeEach(self.stored),)
        return (Reshape(first),) if first != self.plain else ()


def _sizes_of_all(shapes: Sequence[Shape]) -> Shape:
    """Returns the sizes of shapes of as many axes; -1 where they differ."""
    return tuple(sizes[0] if len({*sizes}) == 1 else -1 for sizes in zip(*shapes, strict=True))


@dataclass(frozen=True, slots=True)
class JoinedParts:
    """JoinedParts stores the parts of a tensor in order along `axis`, and the order of axes that makes a part of each.

    Where `blocks` are stated, the parts are joined and cut into so many equal blocks along the axis `across`, which are
    in that order in the tensor. Where the tensor has the parts stacked, and their blocks in that order all the same, it
    does so along the axis `stacked`. All this is about shapes without axes of one element: `whole` is that of the
    tensor, and `each` those of its parts. `matched_by` is the pass: by values, or only by the names of others that
    values show.
    """

    key: str
    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    axis: int
    axes: JoinedAxes
    whole: PlainShape
    each: PlainShapes
    blocks: tuple[int, ...] = ()
    across: int = 0
    stacked: int | None = None
    matched_by: MatchedBy = "fingerprint"

    def joining(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the tensor of its parts."""
        stack = () if self.stacked is None else (Split(self.axis, len(self.parts)), Stack(self.stacked))
        blocks = in_order_of_blocks(self.across, self.blocks)
        return (*self.each.steps(), *self.axes.steps(), Concatenate(self.axis), *blocks, *stack, *self.whole.inverse())

    def parting(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the parts of the tensor."""
        apart = () if self.stacked is None else (Unstack(self.stacked), Concatenate(self.axis))
        blocks = in_order_of_blocks(self.across, tuple(np.argsort(self.blocks).tolist()))
        split = Split(self.axis, self.sizes)
        return (*self.whole.steps(), *apart, *blocks, split, *self.axes.inverse(), *self.each.inverse())


def _turned(order: tuple[int, ...]) -> tuple[RecipeStep, ...]:
    """Returns the step that puts axes into an order; none for the order that they have."""
    return (Transpose(order),) if order != tuple(range(len(order))) else ()
