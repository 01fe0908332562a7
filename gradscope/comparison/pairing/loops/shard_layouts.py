"""A `ShardLayout` states how the values that the shards of a mesh have make that of one device.

Along each axis of a mesh the shards have slices of the value, or each of them has it, or they have the terms of a sum
or a mean that is taken later. A product over a divided axis has such terms, and so has what arrives, going backwards,
at a value that each shard has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Final, Literal, TypeAlias

from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    Mean,
    RecipeStep,
    Reshape,
    Stack,
    Sum,
    Transpose,
    Unstack,
)

#: What the shards along an axis of a mesh have: slices along an axis of the tensor, copies of it, or terms.
Way: TypeAlias = int | Literal["copies", "sum", "mean"]

TERMS: Final[tuple[Literal["sum", "mean"], ...]] = ("sum", "mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """A `ShardLayout` has one way for each axis of a mesh.

    Attributes:
        sizes: The numbers of devices along the axes of the mesh.
        ways: What the shards along each of them have.
        order: The axes of the mesh, those with longer slices of one axis of the tensor first.
        whole: The shape of the value.
        shard: The shape of what each shard has.
    """

    sizes: tuple[int, ...]
    ways: tuple[Way, ...]
    order: tuple[int, ...]
    whole: tuple[int, ...]
    shard: tuple[int, ...]

    @property
    def copied(self) -> tuple[int, ...]:
        """The axes of the mesh along which each shard has the value."""
        return tuple(axis for axis, way in enumerate(self.ways) if way == "copies")

    @property
    def sliced(self) -> tuple[Way, ...]:
        """Along which axes of the tensor it is divided, whatever the shards have along other axes of the mesh."""
        return tuple(way if isinstance(way, int) else "copies" for way in self.ways)

    def with_terms(self, axes: Sequence[int], word: Literal["sum", "mean"]) -> ShardLayout:
        """Returns the layout with the terms of a sum or a mean along some axes of the mesh."""
        return replace(self, ways=tuple(word if axis in axes else way for axis, way in enumerate(self.ways)))

    def steps(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the value of those of the shards: as many results as there are copies."""
        if len(self.copied) == len(self.ways):
            return ()
        if len(self.ways) == 1 and isinstance(self.ways[0], int):
            return (Concatenate(self.ways[0]),)
        reductions = {"sum": Sum, "mean": Mean}
        reduced = [reductions[way](axis) for axis, way in enumerate(self.ways) if way in reductions]
        others = [axis for axis in self.order if not isinstance(self.ways[axis], int)]
        slices = [
            each
            for dimension in range(len(self.shard))
            for each in (*self._slicing(dimension), len(self.sizes) + dimension)
        ]
        grid = () if len(self.sizes) == 1 else (Reshape((*self.sizes, *self.shard)),)
        axes = (*others, *slices)
        moved = () if axes == tuple(range(len(axes))) else (Transpose(axes),)
        copies = math.prod(self.sizes[axis] for axis in self.copied)
        split = (Reshape((copies, *self.whole)), Unstack(0)) if copies > 1 else (Reshape(self.whole),)
        return (Stack(0), *grid, *reduced, *moved, *split)

    def _slicing(self, dimension: int) -> Iterator[int]:
        return (axis for axis in self.order if self.ways[axis] == dimension)


def shard_layouts(whole: tuple[int, ...], shard: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[ShardLayout]:
    """Yields the layouts of slices and copies by which shards of a shape make a whole of a shape.

    Args:
        whole: The shape of the value.
        shard: The shape of what each shard has.
        sizes: The numbers of devices along the axes of the mesh.
    """
    if len(whole) != len(shard):
        return
    choices: tuple[Way, ...] = (*range(len(whole)), "copies")
    for ways in product(choices, repeat=len(sizes)):
        divided = [
            length * math.prod(size for size, way in zip(sizes, ways, strict=True) if way == dimension)
            for dimension, length in enumerate(shard)
        ]
        if tuple(divided) != whole:
            continue
        slicing = [way for way in ways if isinstance(way, int)]
        natural = tuple(range(len(sizes)))
        orders = permutations(natural) if len({*slicing}) < len(slicing) else [natural]
        for order in orders:
            yield ShardLayout(sizes=sizes, ways=ways, order=order, whole=whole, shard=shard)
