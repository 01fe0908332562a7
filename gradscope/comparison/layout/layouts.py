"""Layouts are the orders of axes, and axes split or merged, in which two tensors can hold the same elements.

Examples are HWIO and OIHW, NHWC and NCHW, or a Dense kernel `[in, heads, width]` and a weight `[heads * width, in]`.
`layouts` lists those that two shapes allow; `agreeing_layouts` selects by a sample of the values, because several
layouts fit the same shapes. A layout is selected only where it agrees far better than every other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from itertools import combinations, permutations
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import dtype_name, encode
from gradscope.arrays.widening import real_values
from gradscope.comparison.layout.axis_orders import Shape, merges_into, merging_orders, ordered
from gradscope.comparison.layout.recipe_steps import Concatenate, Flip, RecipeStep, Reorder, Reshape, Split, Transpose
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import example_axes

#: The largest number of axes that are put into other orders. The windows of an image whose heads are apart have six.
_MOST_AXES: Final = 6

#: Number of elements that are sampled.
_SAMPLE: Final = 4096

#: A layout agrees where the sample's relative error is at most this, and at most a quarter of the next best layout's.
_LARGEST_ERROR: Final = 0.5
_BY_FAR: Final = 4

#: The share of the sample, one in so many, that rules unrelated tensors out, and the error that does so. That of
#: unrelated values of one scale is about 1.4.
_FEW: Final = 16
_RULED_OUT: Final = 1.0

#: Layouts whose errors differ by less than this are equally good, for example for a constant tensor.
_EXACT: Final = 1e-6


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """BlockOrder cuts a tensor into equal blocks along `axis`, and joins them in another order along `joined`."""

    axis: int
    joined: int
    order: Shape

    def steps(self, layout: AxisLayout, shape: Shape) -> tuple[RecipeStep, ...]:
        """Returns the recipe steps for a tensor of a shape, each of whose blocks has a layout."""
        count = len(self.order)
        block = tuple(size // count if axis == self.axis else size for axis, size in enumerate(shape))
        return Split(self.axis, count), *layout.steps(block), Reorder(self.order), Concatenate(self.joined)


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """AxisLayout reads a tensor by a reshape to `split`, a transpose to the order `axes`, and a reshape to `shape`.

    Attributes:
        split: The shape before the transpose.
        axes: The order of its axes.
        shape: The shape after the transpose.
        flipped: The axes of the result that are reversed, as those of a kernel that is convolved, not correlated.
        reordered: The parts that one axis is merged of, and their order in the reference; None where no axis is.
        interleaved: Whether an axis is interleaved in one program, and in halves in the other.
        blocks: Where blocks of the tensor, such as the gates of an LSTM, are in another order; None where they are not.
            The other fields are then about one block.
    """

    split: Shape
    axes: Shape
    shape: Shape
    flipped: Shape = ()
    reordered: tuple[Shape, Shape] | None = None
    interleaved: bool = False
    blocks: BlockOrder | None = None

    @property
    def in_order(self) -> bool:
        """Whether the elements stay in their order, so that no more than the shape is another."""
        return self.axes == tuple(range(len(self.axes))) and not self.flipped and self.blocks is None

    def read(self, array: Array) -> Array:
        """Returns a tensor in this layout, without the last reshape."""
        if self.blocks is not None:
            (made,) = reduce(lambda arrays, step: step.apply(arrays), self.steps(array.shape), [array])
            return made
        arranged = array.reshape(self.split).transpose(self.axes)
        return np.flip(arranged, self.flipped) if self.flipped else arranged

    def steps(self, shape: Shape) -> tuple[RecipeStep, ...]:
        """Returns the recipe steps for a tensor of a shape; a step without effect is left out."""
        if self.blocks is not None:
            return self.blocks.steps(replace(self, blocks=None), shape)
        arranged = ordered(self.split, self.axes)
        steps: list[RecipeStep] = [] if self.split == shape else [Reshape(self.split)]
        if self.axes != tuple(range(len(self.axes))):
            steps.append(Transpose(self.axes))
        if arranged != self.shape:
            steps.append(Reshape(self.shape))
        return (*steps, Flip(self.flipped)) if self.flipped else tuple(steps)


def arranged(entry: Entry) -> Shape:
    """Returns the shape that layouts are about: the entry's without the leading axis of examples."""
    return entry.shape[example_axes(entry.family) :]


def differ_by_ones(one: Shape, other: Shape) -> bool:
    """Returns whether two shapes are the same but for axes of one element, as `[n, 1]` and `[n]`."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]


def arranged_part(array: Array, entry: Entry) -> Array:
    """Returns the part of a tensor that layouts are about: of per-example gradients, the first example's."""
    return array[0] if example_axes(entry.family) and array.shape[:1] > (0,) else array


@cache
def layouts(ref: Shape, cand: Shape, merged: tuple[Shape, ...] = ()) -> tuple[AxisLayout, ...]:
    """Returns the layouts that make the reference's shape of the candidate's, those with the fewest steps first.

    Args:
        ref: The reference's shape.
        cand: The candidate's shape.
        merged: Parts that an axis of the candidate may be merged of, as positions and channels of a flattened image.
    """
    if math.prod(ref) != math.prod(cand) or max(len(ref), len(cand)) > _MOST_AXES:
        return (AxisLayout(cand, tuple(range(len(cand))), ref),) if ref == cand else ()
    found = [
        *(AxisLayout(cand, axes, ref) for axes in merging_orders(cand, ref)),
        *(AxisLayout(ordered(ref, axes), tuple(np.argsort(axes).tolist()), ref) for axes in merging_orders(ref, cand)),
        *(layout for parts in merged for layout in _merged_layouts(ref, cand, parts)),
    ]
    steps = {layout.steps(cand): layout for layout in reversed(found)}
    return tuple(sorted(steps.values(), key=lambda layout: len(layout.steps(cand))))


def _merged_layouts(ref: Shape, cand: Shape, parts: Shape) -> Iterator[AxisLayout]:
    """Yields the layouts in which an axis of the candidate is merged of parts, and the reference's in another order."""
    for axis in (axis for axis, size in enumerate(cand) if size == math.prod(parts)):
        for outer in permutations(range(len(cand))):
            if ordered(cand, outer) != ref:
                continue
            split = (*cand[:axis], *parts, *cand[axis + 1 :])
            for inner in list(permutations(range(len(parts))))[1:]:
                places = [
                    place
                    for each in outer
                    for place in (
                        (axis + part for part in inner) if each == axis else (each + (len(parts) - 1) * (each > axis),)
                    )
                ]
                yield AxisLayout(split, tuple(places), ref, reordered=(parts, inner))


def plainly_arranged(array: Array, shape: Shape) -> Array | None:
    """Returns an array in another shape, with its axes merged, split or moved; None where several ways give that shape.

    Axes are merged or split in their order, as positions of an image are, of which channels are moved behind or before
    the space at most.
    """
    if array.size != math.prod(shape):
        return None
    if merges_into(array.shape, shape) or merges_into(shape, array.shape):
        return array.reshape(shape)
    if array.ndim != len(shape):
        return next(_with_channels_moved(array, shape), None)
    if array.ndim > _MOST_AXES:
        return None
    ways = [axes for axes in permutations(range(array.ndim)) if ordered(array.shape, axes) == shape]
    return array.transpose(ways[0]) if len(ways) == 1 else None


def usually_arranged(array: Array, shape: Shape) -> list[Array]:
    """Returns an array in another shape as it is plainly arranged, or else with its channels moved, in each usual way.

    Where several axes have one size, the shape does not tell whether the channels of an image come before its space.

    Args:
        array: The array.
        shape: The shape.
    """
    plain = plainly_arranged(array, shape)
    found = [] if plain is None else [plain]
    if array.ndim == len(shape) > 2 and (plain is None or array.shape == shape):
        first, *space, last = range(array.ndim)
        ways = dict.fromkeys(((first, *space[1:], last, space[0]), (first, last, *space)))
        found += [array.transpose(axes) for axes in ways if ordered(array.shape, axes) == shape]
    elif plain is not None and array.ndim != len(shape):
        found += _with_channels_moved(array, shape)
    return found


def _with_channels_moved(array: Array, shape: Shape) -> Iterator[Array]:
    """Yields an image with its channels moved behind or before its space, whose positions are merged or split then."""
    first, *rest = range(max(array.ndim, 1))
    for axes in ((first, *rest[1:], *rest[:1]), (first, *rest[-1:], *rest[:-1])) if len(rest) > 1 else ():
        turned = ordered(array.shape, axes)
        if merges_into(turned, shape) or merges_into(shape, turned):
            yield array.transpose(axes).reshape(shape)


def flipped_layouts(ref: Shape, cand: Shape) -> tuple[AxisLayout, ...]:
    """Returns the layouts of a kernel that is reversed along its spatial axes, all but two, or the first axis."""
    if not 2 <= len(ref) <= _MOST_AXES:
        return ()
    plain = [layout for layout in layouts(ref, cand) if ordered(layout.split, layout.axes) == ref]
    spatial = combinations(range(len(ref)), len(ref) - 2) if len(ref) > 2 else ()
    return tuple(replace(layout, flipped=axes) for axes in dict.fromkeys((*spatial, (0,))) for layout in plain)


def relative_error(ref: Array, cand: Array, layout: AxisLayout | None = None) -> float:
    """Returns the relative error of a sample of the values in a layout; None is that of two equal shapes."""
    among = (AxisLayout(cand.shape, tuple(range(cand.ndim)), ref.shape) if layout is None else layout,)
    return next((error for _, error in _errors(ref, cand, among)), 0.0)


def agreeing_layouts(ref: Array, cand: Array, possible: Iterable[AxisLayout] | None = None) -> tuple[AxisLayout, ...]:
    """Returns the layouts in which a sample of the values agrees by far best.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor, of the same kind of dtype.
        possible: The layouts to choose from; None for all that the shapes allow.

    Returns:
        One layout; or several, those with the fewest steps first, where the values are equal in all of them, as in a
        constant tensor. Empty where no layout agrees, or where the values do not distinguish between layouts.
    """
    among = tuple(layouts(ref.shape, cand.shape) if possible is None else possible)
    if ref.size > _SAMPLE and all(error > _RULED_OUT for _, error in _errors(ref, cand, among, every=_FEW)):
        return ()  # most pairs that are tried are unrelated, and reading so much of them takes longest
    errors = [(error, layout) for layout, error in _errors(ref, cand, among)]
    best = min((error for error, _ in errors), default=math.inf)
    close = [(error, layout) for error, layout in errors if error <= max(best * _BY_FAR, _EXACT)]
    decided = len(close) == 1 or max((error for error, _ in close), default=0.0) <= best + _EXACT
    return tuple(layout for _, layout in close) if best <= _LARGEST_ERROR and decided else ()


def _errors(
    ref: Array, cand: Array, among: Iterable[AxisLayout], *, every: int = 1
) -> Iterator[tuple[AxisLayout, float]]:
    if not ref.size:
        return
    positions = _sample_positions(ref.size)[::every]
    expected = _sampled(ref, positions)
    for layout in among:
        yield layout, _relative_error(expected, _sampled(layout.read(cand), positions))


@lru_cache(maxsize=64)
def _sample_positions(size: int) -> Array:
    # Seeded, so that comparisons are reproducible; random, because a regular grid could miss whole axes.
    random = size > _SAMPLE
    found = np.unique(np.random.default_rng(0).integers(size, size=_SAMPLE)) if random else np.arange(size)
    found.flags.writeable = False
    return found


def _sampled(array: Array, positions: Array) -> Array:
    sample = np.atleast_1d(array)[np.unravel_index(positions, array.shape or (1,))]
    exact = dtype_class(dtype_name(sample.dtype)) in ("integer", "boolean")
    return (encode(sample) if exact else real_values(sample)).astype(np.float64)


def _relative_error(ref: Array, cand: Array) -> float:
    finite = np.isfinite(ref) & np.isfinite(cand)
    if not finite.any():
        return math.inf
    scale = math.sqrt(float(np.square(ref[finite]).sum()))
    error = math.sqrt(float(np.square(cand[finite] - ref[finite]).sum()))
    return error / scale if scale else (math.inf if error else 0.0)
