"""`PackedParts` stores which tensors of one dump are the parts of a tensor of the other, in one axis or in two.

A `Cut` stores how the packed tensor is divided. The kernels of experts may be stacked as `[layers, experts, ...]`, and
those of a scan over layers be packed in each: `[layers, in, gate and up]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import AxisLayout, Shape, layouts
from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    RecipeStep,
    Reshape,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.equal_parts import Layouts, assigned
from gradscope.comparison.pairing.matching import Dumps, Match, MatchedBy
from gradscope.dump.interfaces import DumpSource

#: The number of axes in which a tensor may be stacked at once, those of the layers and of the experts.
STACKED: Final = 2


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut divides a tensor into equal parts.

    Attributes:
        axis: The axis along which it is divided; None where the parts are stacked in two axes.
        layers: How many slices along the first axis are each divided along the axis; 1 where the tensor is.
    """

    axis: int | None
    layers: int = 1

    def blocks(self, array: Array, count: int) -> list[Array]:
        """Returns the parts of an array, in C order of the axes that they are stacked in."""
        if self.axis is None:
            stack = array.reshape(count, *array.shape[STACKED:])
            return [stack[number, ...] for number in range(count)]
        slices = array if self.layers > 1 else (array,)
        return [part for each in slices for part in np.split(each, count // self.layers, axis=self._within)]

    def apart(self, shape: Shape, count: int) -> tuple[tuple[RecipeStep, ...], Shape]:
        """Returns the steps that divide a tensor of a shape, and the shape of its parts."""
        if self.axis is None:
            return (Unstack(0),) * STACKED, shape[STACKED:]
        into = count // self.layers
        part = tuple(size // into if axis == self.axis else size for axis, size in enumerate(shape))
        if self.layers == 1:
            return (Split(self.axis, into),), part
        return (Unstack(0), Split(self._within, into)), part[1:]

    def together(self, shape: Shape, count: int) -> tuple[RecipeStep, ...]:
        """Returns the steps that make a tensor of a shape of its parts."""
        if self.axis is None:
            return Stack(0), Reshape(shape)
        if self.layers == 1:
            return (Concatenate(self.axis),)
        _, part = self.apart(shape, count)
        order = [0, *range(2, len(shape) + 1)]
        order.insert(self.axis, 1)  # the axis of the parts of each slice in front of that which they make up
        apart = (self.layers, count // self.layers, *part)
        return Stack(0), Reshape(apart), Transpose(tuple(order)), Reshape(shape)

    @property
    def _within(self) -> int:
        """The axis in a slice."""
        return (self.axis or 0) - (self.layers > 1)


def cuts(shape: Shape, count: int) -> Iterator[Cut]:
    """Yields the ways to divide a tensor of a shape into a number of equal parts."""
    yield from (Cut(axis) for axis, size in enumerate(shape) if count and size % count == 0)
    leading = shape[:STACKED]
    if len(leading) == STACKED and min(leading) > 1 and math.prod(leading) == count:
        yield Cut(None)
    layers = shape[0] if shape else 0
    if 1 < layers < count and count % layers == 0:
        yield from (Cut(axis, layers) for axis in range(1, len(shape)) if shape[axis] % (count // layers) == 0)


@dataclass(frozen=True, slots=True)
class PackedParts:
    """PackedParts stores which tensors a packed one is made of: `parts` in the order of `cut`, all in one layout.

    `matched_by` is the pass: by values, or only by the names of others that values show.
    """

    key: str
    parts: tuple[str, ...]
    cut: Cut
    layout: AxisLayout
    matched_by: MatchedBy = "fingerprint"

    def matches(self, dumps: Dumps, *, of_ref: bool) -> Iterator[Match]:
        """Yields the matches of the packed tensor with its parts.

        Args:
            dumps: The dumps.
            of_ref: Whether the reference has the packed tensor.
        """
        if of_ref:
            own = dumps.cand.entry(self.parts[0]).shape
            steps = (*self.layout.steps(own), *self.cut.together(dumps.ref.entry(self.key).shape, len(self.parts)))
            yield Match(ref=self.key, recipe=Recipe(keys=self.parts, steps=steps), matched_by=self.matched_by)
            return
        apart, own = self.cut.apart(dumps.cand.entry(self.key).shape, len(self.parts))
        steps = (*apart, *self.layout.steps(own))
        for part, key in enumerate(self.parts):
            yield Match(ref=key, recipe=Recipe(keys=(self.key,), steps=steps, part=part), matched_by=self.matched_by)


def packed_parts(
    holder: DumpSource,
    key: str,
    count: int,
    candidates: Callable[[list[Array]], Mapping[str, Array]],
    possible: Layouts = layouts,
    *,
    of_ref: bool,
) -> PackedParts | None:
    """Returns the parts of a tensor that are found by their values; None where one is not found.

    Args:
        holder: The dump that has the tensor.
        key: Its key.
        count: The number of its parts.
        candidates: Returns the tensors that may be some blocks.
        possible: Returns the layouts to choose from.
        of_ref: Whether it is the reference that has the packed tensor.
    """
    array = holder.array(key)
    for cut in cuts(array.shape, count):
        blocks = cut.blocks(array, count)
        singles = candidates(blocks)
        if len(singles) < count:
            continue
        if of_ref:
            found = assigned(blocks, singles, possible)
            if found is not None:
                return PackedParts(key, tuple(found[0]), cut, found[1])
            continue
        # The layout makes the reference's tensors of blocks: it is found from the reference's side.
        reverse = _reverse_assignment(blocks, singles, possible)
        if reverse is not None:
            return PackedParts(key, reverse[0], cut, reverse[1])
    return None


def _reverse_assignment(
    blocks: Sequence[Array], singles: Mapping[str, Array], possible: Layouts
) -> tuple[tuple[str, ...], AxisLayout] | None:
    names: list[str] = []
    common: AxisLayout | None = None
    for block in blocks:
        for name in (name for name in singles if name not in names):
            found = assigned([singles[name]], {0: block}, possible)
            if found is not None and common in (None, found[1]):
                names.append(name)
                common = found[1]
                break
    return (tuple(names), common) if common is not None and len(names) == len(blocks) else None
