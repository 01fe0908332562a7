"""Computes the `Reduction` of an array in one pass over its blocks.

Non-finite elements are counted, and are left out of all other reductions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.dtypes import dtype_name, encode, is_complex, is_floating, smallest_normal, storable
from gradscope.arrays.magnitudes import MagnitudeCounter
from gradscope.arrays.moments import moments_of, narrow_moments, sum_of_magnitudes
from gradscope.arrays.passes.code_tally import is_tallied, reduce_codes
from gradscope.arrays.passes.compiled_pass import compiled_reduction
from gradscope.arrays.reductions import Extremes, NonFinite, Reduction
from gradscope.arrays.scratch import ScratchSlot, scratch
from gradscope.arrays.widening import real_values

#: Elements of a block whose magnitudes are not computed. It is larger, for fewer calls into NumPy, because no float64
#: copy shares the cache with it.
_PLAIN_ELEMENTS: Final = 1 << 19

#: The reduction of no elements.
_NONE: Final = Reduction(zeros=0, nonfinite=NonFinite(nan=0, inf=0, neginf=0))


def reduce_array(array: Array, *, magnitudes: bool) -> Reduction:
    """Returns the reductions of an array.

    Args:
        array: Any shape, strides and dtype. A complex array is reduced to its magnitudes first.
        magnitudes: Whether to compute the reductions that only the full tier has; it takes three times as long.

    Returns:
        The reductions; all are None for a dtype that JAX does not compute with.
    """
    name = dtype_name(array.dtype)
    if is_floating(name) or is_complex(name):
        return _reduce_real(array, magnitudes=magnitudes)
    return _reduce_integers(encode(array)) if storable(name) else Reduction()


def _reduce_integers(array: Array) -> Reduction:
    zeros = array.size - int(np.count_nonzero(array))
    extremes = Extremes(low=int(array.min()), high=int(array.max())) if array.size else None
    return Reduction(zeros=zeros, extremes=extremes)


def _reduce_real(array: Array, *, magnitudes: bool) -> Reduction:
    if magnitudes and is_tallied(array):
        return reduce_codes(array)
    compiled = compiled_reduction(array, magnitudes=magnitudes)
    if compiled is not None:
        return compiled
    if not magnitudes:
        return sum((_reduce_plainly(real_values(block)) for block in blocks(array, _PLAIN_ELEMENTS)), _NONE)
    counter = MagnitudeCounter(smallest_normal(array.dtype))
    running = sum((_reduce_block(real_values(block), counter) for block in blocks(array)), _NONE)
    return replace(running, magnitudes=counter.result())


def _reduce_plainly(values: Array) -> Reduction:
    """Returns the reductions of a large block without magnitudes, computed in float32 where that is accurate enough."""
    narrow = _reduce_in_float32(values) if values.dtype == np.float32 else None
    return sum((_reduce_block(block, None) for block in blocks(values)), _NONE) if narrow is None else narrow


def _reduce_in_float32(values: Array) -> Reduction | None:
    low, high = float(values.min()) + 0.0, float(values.max()) + 0.0  # of zeros the positive one
    with np.errstate(over="ignore", invalid="ignore"):
        moments = narrow_moments(values, low, high)
    if moments is None or not math.isfinite(moments.mean):  # `min` and `max` may miss a NaN, the sum does not
        return None
    return Reduction(
        zeros=_zeros(values),
        nonfinite=NonFinite(nan=0, inf=0, neginf=0),
        extremes=Extremes(low=low, high=high),
        moments=moments,
    )


def _zeros(values: Array) -> int:
    return int(np.count_nonzero(np.equal(values, 0, out=scratch(ScratchSlot.WORK, values.size, np.bool_))))


def _reduce_block(values: Array, counter: MagnitudeCounter | None) -> Reduction:
    with np.errstate(over="ignore", invalid="ignore"):  # invalid: a signalling NaN
        wide = _as_float64(values)
        total = float(wide.sum())
    # A NaN or an infinity always makes the sum non-finite, so only such blocks are searched. Extremes would not do: a
    # vectorised minimum may miss a NaN.
    if not math.isfinite(total) and not (finite := np.isfinite(values)).all():
        counts = Reduction(zeros=0, nonfinite=_nonfinite(values))
        return counts + _reduce_block(values[finite], counter) if finite.any() else counts
    low, high = float(values.min()) + 0.0, float(values.max()) + 0.0  # of zeros the positive one
    zeros = _zeros(values) if counter is None else counter.add(values, sum_of_magnitudes(wide, total, low, high))
    return Reduction(
        zeros=zeros,
        nonfinite=NonFinite(nan=0, inf=0, neginf=0),
        extremes=Extremes(low=low, high=high),
        moments=moments_of(wide, total, low, high),
    )


def _as_float64(values: Array) -> Array:
    if values.dtype == np.float64:
        return values
    wide = scratch(ScratchSlot.WIDE, values.size, np.float64)
    np.copyto(wide, values)
    return wide


def _nonfinite(values: Array) -> NonFinite:
    infinite = values[np.isinf(values)]
    return NonFinite(
        nan=int(np.count_nonzero(np.isnan(values))),
        inf=infinite.size,
        neginf=int(np.count_nonzero(infinite < 0)),
    )
