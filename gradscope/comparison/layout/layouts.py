"""Layouts: the orders of axes, and axes split or merged, in which two tensors can hold the same elements.

Examples are HWIO and OIHW, NHWC and NCHW, or a Dense kernel `[in, heads, width]` and a weight `[heads * width, in]`.
`layouts` lists those that two shapes allow; `agreeing_layouts` selects by a sample of the values, because several
layouts fit the same shapes. A layout is selected only where it agrees far better than every other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, permutations
from operator import mul
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import dtype_name, encode
from gradscope.arrays.widening import real_values
from gradscope.comparison.layout.recipes import RecipeStep, Reshape, Transpose
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import example_axes

Shape: TypeAlias = tuple[int, ...]

#: The largest number of axes of which all orders are tried: five axes have 120.
_MOST_AXES: Final = 5

#: Number of elements that are sampled.
_SAMPLE: Final = 4096

#: A layout agrees where the sample's relative error is at most this, and at most a quarter of the next best layout's.
_LARGEST_ERROR: Final = 0.5
_BY_FAR: Final = 4

#: Layouts whose errors differ by less than this are equally good, for example for a constant tensor.
_EXACT: Final = 1e-6


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """AxisLayout reads a tensor by a reshape to `split`, a transpose to the order `axes`, and a reshape to `shape`."""

    split: Shape
    axes: Shape
    shape: Shape

    def steps(self, shape: Shape) -> tuple[RecipeStep, ...]:
        """Returns the recipe steps for a tensor of a shape; a reshape or transpose without effect is left out."""
        arranged = tuple(self.split[axis] for axis in self.axes)
        steps: list[RecipeStep] = [] if self.split == shape else [Reshape(self.split)]
        if self.axes != tuple(range(len(self.axes))):
            steps.append(Transpose(self.axes))
        return (*steps, Reshape(self.shape)) if arranged != self.shape else tuple(steps)


def arranged(entry: Entry) -> Shape:
    """Returns the shape that layouts are about: the entry's without the leading axis of examples."""
    return entry.shape[example_axes(entry.family) :]


def arranged_part(array: Array, entry: Entry) -> Array:
    """Returns the part of a tensor that layouts are about: of per-example gradients, the first example's."""
    return array[0] if example_axes(entry.family) and array.shape[:1] > (0,) else array


@cache
def layouts(ref: Shape, cand: Shape) -> tuple[AxisLayout, ...]:
    """Returns the layouts that make the reference's shape of the candidate's, those with the fewest steps first."""
    if math.prod(ref) != math.prod(cand) or max(len(ref), len(cand)) > _MOST_AXES:
        return (AxisLayout(cand, tuple(range(len(cand))), ref),) if ref == cand else ()
    found = [
        *(
            AxisLayout(cand, axes, ref)
            for axes in permutations(range(len(cand)))
            if _refines(_ordered(cand, axes), ref)
        ),
        *(
            AxisLayout(_ordered(ref, axes), tuple(np.argsort(axes).tolist()), ref)
            for axes in permutations(range(len(ref)))
            if _refines(_ordered(ref, axes), cand)
        ),
    ]
    steps = {layout.steps(cand): layout for layout in reversed(found)}
    return tuple(sorted(steps.values(), key=lambda layout: len(layout.steps(cand))))


def agreeing_layouts(ref: Array, cand: Array) -> tuple[AxisLayout, ...]:
    """Returns the layouts in which a sample of the values agrees by far best.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor, of the same kind of dtype.

    Returns:
        One layout; or several, those with the fewest steps first, where the values are equal in all of them, as in a
        constant tensor. Empty where no layout agrees, or where the values do not distinguish between layouts.
    """
    errors = [(error, layout) for layout, error in _errors(ref, cand)]
    best = min((error for error, _ in errors), default=math.inf)
    close = [(error, layout) for error, layout in errors if error <= max(best * _BY_FAR, _EXACT)]
    decided = len(close) == 1 or max((error for error, _ in close), default=0.0) <= best + _EXACT
    return tuple(layout for _, layout in close) if best <= _LARGEST_ERROR and decided else ()


def _errors(ref: Array, cand: Array) -> Iterator[tuple[AxisLayout, float]]:
    if not ref.size:
        return
    positions = _sample_positions(ref.size)
    expected = _sampled(ref, positions)
    for layout in layouts(ref.shape, cand.shape):
        arranged = cand.reshape(layout.split).transpose(layout.axes)
        yield layout, _relative_error(expected, _sampled(arranged, positions))


def _sample_positions(size: int) -> Array:
    if size <= _SAMPLE:
        return np.arange(size)
    # Seeded, so that comparisons are reproducible; random, because a regular grid could miss whole axes.
    return np.unique(np.random.default_rng(0).integers(size, size=_SAMPLE))


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


def _ordered(shape: Shape, axes: Shape) -> Shape:
    return tuple(shape[axis] for axis in axes)


def _refines(fine: Shape, coarse: Shape) -> bool:
    """Returns whether merging neighbouring axes of `fine` gives `coarse`."""
    return set(accumulate(coarse, mul)) <= set(accumulate(fine, mul))
