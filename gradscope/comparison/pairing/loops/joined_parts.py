"""`PartJoin` makes a value of a batch of those of its parts, and the parts of the value.

The parts follow each other along the axis of the examples. Where each has every n-th example, or they come in another
order, the order of the examples is what the values prove (`layout.example_orders`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from gradscope.comparison.layout.example_orders import Order
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    RecipeStep,
    Reshape,
    Split,
    Stack,
    Transpose,
    Unstack,
    in_order_of_blocks,
)

#: The number of axes up to which values have no channels that may be elsewhere.
_PLAIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartJoin:
    """PartJoin makes a value of its parts, which follow each other along an axis.

    Attributes:
        shape: The shape of the value.
        axis: The axis of the examples.
        sizes: The sizes of the parts along it.
        stacked: The axis that one tensor has of all parts; None where each is a tensor.
        whole: Whether the value has such an axis, along which the parts of the other program are.
        moved: The axes of what the parts make in the order that those of the value have, where their channels are
            elsewhere; none where they are not. The shape is that of what the parts make then.
    """

    shape: Shape
    axis: int
    sizes: tuple[int, ...]
    stacked: int | None = None
    whole: bool = False
    moved: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.sizes)

    def joining(self, order: Order) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the value of its parts."""
        ordered = _ordering(self.shape, self.axis, self._of_all(order))
        if self.stacked is None:
            laid_out = (Transpose(self.moved),) if self.moved else ()
            return Stack(self.axis) if self.whole else Concatenate(self.axis), *ordered, *laid_out
        moved = (self.stacked, self.axis + (self.stacked <= self.axis))
        return *self._moving(moved), Reshape(self.shape), *ordered

    def parting(self, order: Order) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the parts of the value."""
        of_all = self._of_all(order)
        ordered = _ordering(self.shape, self.axis, tuple(sorted(range(len(of_all)), key=of_all.__getitem__)))
        if self.whole:
            return *ordered, Unstack(self.axis)
        if self.stacked is None:
            laid_out = (Transpose(tuple(np.argsort(self.moved).tolist())),) if self.moved else ()
            split = Split(self.axis, len(self.sizes) if len({*self.sizes}) == 1 else self.sizes)
            return *laid_out, *ordered, split
        split = (*self.shape[: self.axis], len(self.sizes), self.sizes[0], *self.shape[self.axis + 1 :])
        back = [axis for axis in range(len(split)) if axis != self.axis]
        back.insert(self.stacked, self.axis)
        moved = () if back == sorted(back) else (Transpose(tuple(back)),)
        return *ordered, Reshape(split), *moved

    def _moving(self, moved: tuple[int, int]) -> tuple[RecipeStep, ...]:
        """Returns the step that moves the axis of the parts in front of that of the examples; none where it is."""
        parts, examples = moved
        axes = [axis for axis in range(len(self.shape) + 1) if axis != parts]
        axes.insert(axes.index(examples), parts)
        return () if axes == sorted(axes) else (Transpose(tuple(axes)),)

    def _of_all(self, order: Order) -> Order:
        """Returns an order of examples as one of all that stands along the axis; none where it has no such examples."""
        size = self.shape[self.axis]
        if not order or size % len(order):
            return ()
        each = size // len(order)
        return tuple(example * each + place for example in order for place in range(each))


def part_joins(shape: Shape, parts: Sequence[Shape]) -> Iterator[PartJoin]:
    """Yields the ways in which parts of some shapes can make a value of a shape, the likeliest first.

    Args:
        shape: The shape of the value.
        parts: The shapes of its parts; one that has an axis more has all parts along that.
    """
    if len(parts) == 1:
        (part,) = parts
        for stacked, axis in product(range(len(part)), range(len(shape))):
            count, single = part[stacked], part[:stacked] + part[stacked + 1 :]
            if count > 1 and len(single) == len(shape) and _with(single, axis, count * single[axis]) == shape:
                yield PartJoin(shape=shape, axis=axis, sizes=(single[axis],) * count, stacked=stacked)
        return
    for axis in range(len(shape)):
        if (len(parts), {*parts}) == (shape[axis], {shape[:axis] + shape[axis + 1 :]}):
            yield PartJoin(shape=shape, axis=axis, sizes=(1,) * len(parts), whole=True)
    if any(len(part) != len(shape) for part in parts):
        return
    for axis, size in enumerate(shape):
        sizes = tuple(part[axis] for part in parts)
        if sum(sizes) == size and all(_with(part, axis, size) == shape for part in parts):
            yield PartJoin(shape=shape, axis=axis, sizes=sizes)
    sizes = tuple(part[0] for part in parts) if len(shape) > _PLAIN else ()
    for moved in _channels_moved(len(shape)) if sizes and sum(sizes) == shape[0] else ():
        made = tuple(shape[moved.index(axis)] for axis in range(len(shape)))
        if all(_with(part, 0, shape[0]) == made for part in parts):
            yield PartJoin(shape=made, axis=0, sizes=sizes, moved=moved)


def _channels_moved(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the orders of axes that move channels behind the examples, and that move them to the end."""
    places = range(count)
    return (0, count - 1, *places[1:-1]), (0, *places[2:], 1)


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _ordering(shape: Shape, axis: int, order: Order) -> tuple[RecipeStep, ...]:
    """Returns the steps that put the entries along an axis into an order; none where they are in it."""
    if not order or order == tuple(range(len(order))):
        return ()
    each = _block_size(order)
    blocks = tuple(start // each for start in order[::each])
    rows = _rows_of_transposition(blocks)
    if rows is None:
        return in_order_of_blocks(axis, blocks)
    split = (*shape[:axis], rows, len(blocks) // rows, each, *shape[axis + 1 :])
    axes = list(range(len(split)))
    axes[axis], axes[axis + 1] = axis + 1, axis
    return Reshape(split), Transpose(tuple(axes)), Reshape(shape)


def _block_size(order: Order) -> int:
    """Returns the size of the largest equal blocks that an order moves as a whole."""
    starts = [place for place in range(len(order)) if place == 0 or order[place] != order[place - 1] + 1]
    return math.gcd(len(order), *starts, *(order[place] for place in starts))


def _rows_of_transposition(order: Order) -> int | None:
    """Returns the rows of the matrix of which an order is that of its columns; None where it is that of none."""
    rows = len(order) // order[1] if order[1:2] and 0 < order[1] < len(order) else 0
    if rows < 2 or len(order) % rows:
        return None
    transposed = np.arange(len(order)).reshape(rows, -1).T.reshape(-1)
    return rows if transposed.tolist() == [*order] else None
