"""`ulp_distances` counts the values of a dtype between two of its numbers: their distance in units in the last place.

The bit patterns of an IEEE format, read as integers, have the order of the magnitudes. So the distance of two numbers
of one sign is the difference of their patterns. The distance of two numbers of opposite signs is the sum of their
distances from zero; both zeros count as one value.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.scratch import scratch
from gradscope.comparison.metrics.block_pairs import BlockBuffer


def ulp_distances(ref: Array, cand: Array) -> Array:
    """Returns the distance in ulps of each element of one block from the other block's.

    Args:
        ref: The reference's block: one-dimensional, contiguous, of a real floating-point dtype, all finite.
        cand: The candidate's block of the same size and dtype.

    Returns:
        Unsigned integers of the same size, in a buffer that the next call in this thread overwrites.
    """
    if ref.dtype.itemsize == 1:
        ordinals = _ordinals_of_codes(ref.dtype)
        one, other = np.take(ordinals, ref.view(np.uint8)), np.take(ordinals, cand.view(np.uint8))
        return np.abs(one - other).view(np.uint16)
    return _distances_of_patterns(ref.view(f"i{ref.dtype.itemsize}"), cand.view(f"i{ref.dtype.itemsize}"))


def _distances_of_patterns(ref: Array, cand: Array) -> Array:
    distances = scratch(BlockBuffer.WORK, ref.size, ref.dtype)
    np.bitwise_xor(ref, cand, out=distances)
    # Opposite signs are handled apart, because they are few: only numbers near zero change sign by rounding.
    opposite = np.flatnonzero(distances < 0) if distances.min() < 0 else None
    np.abs(np.subtract(ref, cand, out=distances), out=distances)
    unsigned = distances.view(f"u{ref.dtype.itemsize}")
    if opposite is not None:
        unsigned[opposite] = _magnitude_patterns(ref[opposite]) + _magnitude_patterns(cand[opposite])
    return unsigned


def _magnitude_patterns(patterns: Array) -> Array:
    return (patterns & np.iinfo(patterns.dtype).max).view(f"u{patterns.dtype.itemsize}")


@cache
def _ordinals_of_codes(dtype: np.dtype[Any]) -> Array:
    # Types of a byte and less encode signs and special values in five different ways, but their values have an order.
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    finite = np.isfinite(values)
    ordinals = np.zeros(256, np.int16)
    ordinals[finite] = np.unique(values[finite], return_inverse=True)[1]
    return ordinals
