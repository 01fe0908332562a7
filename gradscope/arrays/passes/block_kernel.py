"""`block_kernel` has the loops of the compiled pass over float32, in the subset of Python that numba compiles.

A block has at most `BLOCK` elements. One loop fetches it from memory and computes all that has no need of magnitudes,
as integers, whose order is that of the floats, and as float64: loops over a block that is in the cache take longer than
memory, and the memory waits for them. What is computed of magnitudes reads the block again. No loop has branches, and
all vectorise, except the one that counts by magnitude.
"""

from __future__ import annotations

from typing import Any, Final

import numba as nb
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.passes.accumulators import (
    COUNT,
    HIGH,
    INFINITIES,
    LOW,
    MAGNITUDES,
    MEAN,
    NANS,
    NARROW_SHIFT,
    NEGATIVE_INFINITIES,
    SMALLEST,
    SQUARED_DEVIATIONS,
    SQUARES,
    SUBNORMAL,
    TALLIES,
    WIDE_SHIFT,
    ZEROS,
    Accumulators,
)

MAGNITUDE: Final = np.int32(0x7FFFFFFF)
_INFINITY: Final = np.int32(0x7F800000)
_ONE: Final = np.int32(1)
_SIGN_SHIFT: Final = np.int32(31)
_FIRST_NORMAL: Final = np.int32(0x00800000 - 1)

#: What LLVM may assume about sums: that they can be reordered, not that there are no NaNs.
_REORDERED: Final = {"reassoc", "contract", "nsz"}

#: Neither references are counted nor errors raised: the loops call nothing outside themselves, and run without numba.
OPTIONS: Final[dict[str, Any]] = {"_nrt": False, "error_model": "numpy"}


def inner(loop: Any) -> Any:
    """Returns a loop as it is compiled into the kernel."""
    return nb.njit(fastmath=_REORDERED, **OPTIONS)(loop)


@inner
def place_of(bits: Any) -> Any:
    """Returns a float's place in their order: its bits, with those of the magnitude inverted where it is negative."""
    # Numba widens the results of arithmetic to 64 bits, which halves the lanes: hence the conversions, here and below.
    return np.int32(bits ^ ((bits >> _SIGN_SHIFT) & MAGNITUDE))


@inner
def outline_of(values: Array) -> Any:
    """Returns the extremes, the number of zeros, and sums of the deviations from the first element.

    Returns:
        Least place, greatest place, zeros, sum of deviations, sum of their squares.
    """
    bits = values.view(np.int32)
    first = np.float64(values[0])
    low, high, zeros = MAGNITUDE, np.int32(~MAGNITUDE), np.int32(0)
    total, squares = 0.0, 0.0
    for i in range(bits.size):
        place = place_of(bits[i])
        low = min(low, place)
        high = max(high, place)
        zeros = np.int32(zeros + np.int32((bits[i] & MAGNITUDE) == 0))
        deviation = np.float64(values[i]) - first
        total += deviation
        squares += deviation * deviation
    return low, high, zeros, total, squares


@inner
def add_outline(first: Any, number: int, outline: Any, reduced: Accumulators) -> None:
    """Adds the extremes, zeros and moments of a block.

    Args:
        first: Its first element.
        number: The number of its elements, which are finite.
        outline: The result of `outline_of`.
        reduced: What is added to.
    """
    low, high, zeros, total, squares = outline
    sums, counts = reduced.sums, reduced.counts
    counts[ZEROS] += zeros
    counts[LOW] = min(counts[LOW], np.int64(low))
    counts[HIGH] = max(counts[HIGH], np.int64(high))
    size = np.float64(number)
    shift = total / size
    mean = np.float64(first) + shift
    # The squares about the first element are at most `size + 1` times those about the mean, to which that element adds
    # its own: of sixteen digits four are lost at worst.
    deviations = squares - total * shift
    before = sums[COUNT]
    count = before + size
    apart = mean - sums[MEAN]
    # The update of Chan, Golub and LeVeque, as in `gradscope.arrays.moments`.
    sums[MEAN] += apart * (size / count)
    sums[SQUARED_DEVIATIONS] += deviations + apart * apart * (before * (size / count))
    sums[COUNT] = count
    sums[SQUARES] += deviations + size * mean * mean


@inner
def all_finite(outline: Any) -> bool:
    """Returns whether all elements of a block are finite, by the result of `outline_of`."""
    return outline[0] > ~_INFINITY and outline[1] < _INFINITY


@inner
def _sum_of_magnitudes(values: Array) -> Any:
    magnitudes = 0.0
    for i in range(values.size):
        magnitudes += np.abs(np.float64(values[i]))
    return magnitudes


@inner
def _smallest(values: Array) -> Any:
    """Returns the smallest ordinal, of 31 bits; that of zero is the largest."""
    bits = values.view(np.int32)
    smallest = MAGNITUDE
    for i in range(bits.size):
        smallest = min(smallest, np.int32((bits[i] - _ONE) & MAGNITUDE))
    return smallest


@inner
def _below(values: Array, limit: Any) -> int:
    bits = values.view(np.int32)
    number = np.int32(0)
    for i in range(bits.size):
        ordinal = np.int32((bits[i] - _ONE) & MAGNITUDE)
        number = np.int32(number + np.int32(ordinal < limit))
    return int(number)


@inner
def _tally(values: Array, narrow: Array) -> None:
    bits = values.view(np.uint32)
    shift = np.uint32(NARROW_SHIFT)
    full = bits.size - bits.size % TALLIES
    for i in range(0, full, TALLIES):
        for turn in range(TALLIES):
            narrow[turn, np.uint32((bits[i + turn] - _ONE) & MAGNITUDE) >> shift] += 1
    for i in range(full, bits.size):
        narrow[0, np.uint32((bits[i] - _ONE) & MAGNITUDE) >> shift] += 1


@inner
def _tally_wide(values: Array, wide: Array) -> None:
    for i in range(values.size):
        bits: Any = np.float64(values[i]).view(np.uint64)
        wide[((bits - np.uint64(1)) & np.uint64(0x7FFFFFFFFFFFFFFF)) >> np.uint64(WIDE_SHIFT)] += 1


@inner
def _add_magnitudes(values: Array, limit: Any, reduced: Accumulators) -> None:
    counts, smallest = reduced.counts, _smallest(values)
    counts[SMALLEST] = min(counts[SMALLEST], np.int64(smallest))
    reduced.sums[MAGNITUDES] += _sum_of_magnitudes(values)
    if smallest < limit:
        counts[SUBNORMAL] += _below(values, limit)
    if smallest < _FIRST_NORMAL:
        _tally_wide(values, reduced.wide)
    else:
        _tally(values, reduced.narrow)


@inner
def reduce_block(values: Array, finite: Array, limit: Any, reduced: Accumulators) -> None:
    """Adds the reductions of a block.

    Args:
        values: The block.
        finite: Room for its finite elements.
        limit: As for `NativeKernel.reduce_floats`.
        reduced: What is added to.
    """
    counts = reduced.counts
    outline = outline_of(values)
    if not all_finite(outline):
        size = 0
        for value in values:
            if np.isnan(value):
                counts[NANS] += 1
            elif np.isinf(value):
                counts[INFINITIES] += 1
                counts[NEGATIVE_INFINITIES] += np.int64(value < 0)
            else:
                finite[size] = value
                size += 1
        if not size:
            return
        values = finite[:size]
        outline = outline_of(values)
    add_outline(values[0], values.size, outline, reduced)
    if reduced.narrow.size:
        _add_magnitudes(values, limit, reduced)
