"""Layouts: the orders of axes, and axes split or merged, in which two tensors hold the same elements.

HWIO against OIHW, NHWC against NCHW, a Dense kernel `[in, heads, width]` against a weight `[heads * width, in]`: which
of the layouts that the shapes allow it is, only the values tell. A sample of the elements decides, and decides for a
layout only where it agrees far better than any other does.
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
from gradscope.comparison.layout.recipes import Reshape, Step, Transpose
from gradscope.comparison.precision import kind_of
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import example_axes

Shape: TypeAlias = tuple[int, ...]

#: Axes up to which all orders are tried; 120 of five.
_MOST_AXES: Final = 5

#: Elements that are looked at.
_SAMPLE: Final = 4096

#: A layout is right where the sample's relative error is at most this, and at most a quarter of the next best's.
_LARGEST_ERROR: Final = 0.5
_BY_FAR: Final = 4

#: Two layouts that agree to this are the same for these values, as of a constant tensor.
_EXACT: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to read a tensor: split into a shape, its axes in an order, then seen in the other's shape."""

    split: Shape
    axes: Shape
    shape: Shape

    def steps(self, shape: Shape) -> tuple[Step, ...]:
        """What is done to a tensor of a shape."""
        arranged = tuple(self.split[axis] for axis in self.axes)
        steps: list[Step] = [] if self.split == shape else [Reshape(self.split)]
        if self.axes != tuple(range(len(self.axes))):
            steps.append(Transpose(self.axes))
        return (*steps, Reshape(self.shape)) if arranged != self.shape else tuple(steps)


def arranged(entry: Entry) -> Shape:
    """The shape of what lies in one layout or another: without the axis of the examples, which comes first in all."""
    return entry.shape[example_axes(entry.family) :]


def arranged_part(array: Array, entry: Entry) -> Array:
    """What of a tensor lies in one layout or another: of the gradients of several examples the first."""
    return array[0] if example_axes(entry.family) and array.shape[:1] > (0,) else array


@cache
def layouts(ref: Shape, cand: Shape) -> tuple[Layout, ...]:
    """The layouts by which a tensor of the candidate's shape can be one of the reference's, as it is first."""
    if math.prod(ref) != math.prod(cand) or max(len(ref), len(cand)) > _MOST_AXES:
        return (Layout(cand, tuple(range(len(cand))), ref),) if ref == cand else ()
    found = [
        *(Layout(cand, axes, ref) for axes in permutations(range(len(cand))) if _refines(_ordered(cand, axes), ref)),
        *(
            Layout(_ordered(ref, axes), tuple(np.argsort(axes).tolist()), ref)
            for axes in permutations(range(len(ref)))
            if _refines(_ordered(ref, axes), cand)
        ),
    ]
    steps = {layout.steps(cand): layout for layout in reversed(found)}
    return tuple(sorted(steps.values(), key=lambda layout: len(layout.steps(cand))))


def agreeing_layouts(ref: Array, cand: Array) -> tuple[Layout, ...]:
    """The layouts in which a sample of the values agrees by far best.

    Args:
        ref: The reference's tensor.
        cand: The candidate's, of the same kind of dtype.

    Returns:
        One layout; several, that of fewest steps first, where the values are the same in all of them, as of a constant
        tensor. None where none agrees, or where it cannot be told which.
    """
    errors = [(error, layout) for layout, error in _errors(ref, cand)]
    best = min((error for error, _ in errors), default=math.inf)
    alike = [(error, layout) for error, layout in errors if error <= max(best * _BY_FAR, _EXACT)]
    told_apart = len(alike) == 1 or max((error for error, _ in alike), default=0.0) <= best + _EXACT
    return tuple(layout for _, layout in alike) if best <= _LARGEST_ERROR and told_apart else ()


def _errors(ref: Array, cand: Array) -> Iterator[tuple[Layout, float]]:
    if not ref.size:
        return
    at = _places(ref.size)
    expected = _sampled(ref, at)
    for layout in layouts(ref.shape, cand.shape):
        arranged = cand.reshape(layout.split).transpose(layout.axes)
        yield layout, _relative_error(expected, _sampled(arranged, at))


def _places(size: int) -> Array:
    if size <= _SAMPLE:
        return np.arange(size)
    # The same places every time, and no pattern that an axis could share.
    return np.unique(np.random.default_rng(0).integers(size, size=_SAMPLE))


def _sampled(array: Array, at: Array) -> Array:
    sample = np.atleast_1d(array)[np.unravel_index(at, array.shape or (1,))]
    exact = kind_of(dtype_name(sample.dtype)) in ("integer", "boolean")
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
    """Whether neighbouring axes of one shape merge into another."""
    return set(accumulate(coarse, mul)) <= set(accumulate(fine, mul))
