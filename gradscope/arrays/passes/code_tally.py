"""Reduces a large array of floats of at most 16 bits from the number of its elements of each code.

A *code* is a bit pattern as an integer. There are no more than 65,536 of them, so that the array is read once, for one
increment per element, and everything is computed of the counts. These are the same whatever counts them, and so are the
reductions, to the last bit.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.dtypes import smallest_normal
from gradscope.arrays.magnitudes import FLOAT64, Magnitudes
from gradscope.arrays.moments import Moments, inner
from gradscope.arrays.passes.compiled_pass import compiled_counts
from gradscope.arrays.reductions import Extremes, NonFinite, Reduction
from gradscope.arrays.widening import codes_of, float32_of_code

_MOST_BYTES: Final = 2

#: Elements of which the counts are sooner computed than the reductions themselves, with NumPy and nearly compiled.
_LARGE: Final = 1 << 17

#: Elements that NumPy counts in one call, which allocates the counts.
_ELEMENTS: Final = 1 << 18


def is_tallied(array: Array) -> bool:
    """Returns whether an array of floats has so many elements that its reductions are sooner those of its codes."""
    return array.itemsize <= _MOST_BYTES and array.size >= _LARGE


def reduce_codes(array: Array) -> Reduction:
    """Returns the reductions of an array, those of magnitudes included.

    Args:
        array: Any shape and strides; of a dtype for which `is_tallied`.
    """
    counts = compiled_counts(array)
    return _reduction(_counts(array) if counts is None else counts, array.dtype)


def _counts(array: Array) -> Array:
    codes = 256**array.itemsize
    return reduce(np.add, (np.bincount(codes_of(block), minlength=codes) for block in blocks(array, _ELEMENTS)))


def _reduction(counts: Array, dtype: np.dtype[Any]) -> Reduction:
    codes = np.flatnonzero(counts != 0)  # of truth values in a fifth of the time
    with np.errstate(invalid="ignore"):  # a signalling NaN is one, too
        values, numbers = float32_of_code(dtype)[codes].astype(np.float64), counts[codes]
    nonfinite = NonFinite(
        nan=_number(numbers, np.isnan(values)),
        inf=_number(numbers, np.isinf(values)),
        neginf=_number(numbers, values == -math.inf),
    )
    finite = np.isfinite(values)
    values, numbers = values[finite], numbers[finite]
    return Reduction(
        zeros=_number(numbers, values == 0),
        nonfinite=nonfinite,
        extremes=Extremes(low=float(values.min()) + 0.0, high=float(values.max()) + 0.0) if values.size else None,
        moments=_moments(values, numbers) if values.size else None,
        magnitudes=_magnitudes(values, numbers, smallest_normal(dtype)),
    )


def _number(numbers: Array, chosen: Array) -> int:
    return int(numbers[chosen].sum())


def _moments(values: Array, numbers: Array) -> Moments:
    # No square or sum of floats of eight bits of exponent leaves the range of float64.
    weights = numbers.astype(np.float64)
    count = int(numbers.sum())
    low, high = float(values.min()), float(values.max())
    if low == high:  # a mean of equal elements is exact
        return Moments(count=count, mean=low + 0.0, std=0.0, rms=abs(low))
    mean = inner(weights, values) / count
    variance, mean_square = (inner(weights, each * each) / count for each in (values - mean, values))
    return Moments(count=count, mean=mean, std=math.sqrt(variance), rms=math.sqrt(mean_square))


def _magnitudes(values: Array, numbers: Array, normal: float) -> Magnitudes:
    ordinals = FLOAT64.ordinals(values)
    bins = np.right_shift(ordinals, FLOAT64.shift).astype(np.intp)
    # Weights are float64, which counts exactly up to 2^53.
    tally = np.bincount(bins, numbers, FLOAT64.bins).astype(np.int64)
    return Magnitudes(
        total=inner(numbers.astype(np.float64), np.abs(values)),
        smallest=FLOAT64.magnitude_of(ordinals.min(initial=FLOAT64.zero_ordinal)),
        subnormal=_number(numbers, ordinals < FLOAT64.ordinal_of(normal)),
        histogram=FLOAT64.histogram(tally),
    )
