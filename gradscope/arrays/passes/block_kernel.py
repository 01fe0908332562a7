"""`block_kernel` has the loops of the compiled pass, in the subset of Python that numba compiles.
Importing this module compiles nothing.

The kernel reads float32 in blocks of `BLOCK` elements. One loop fetches a block from memory and computes all that has
no need of magnitudes, as integers, whose order is that of the floats, and as float64: loops over a block that is in the
cache take longer than memory, and the memory waits for them. What is computed of magnitudes reads the block again. No
loop has branches, and all vectorise, except the one that counts by magnitude.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba as nb
import numpy as np

from gradscope.arrays.blocks import Array

#: Elements that stay in the second-level cache, with a copy of the finite ones; 8 Ki to 64 Ki are equally fast.
BLOCK: Final = 1 << 14

#: Bins of float32 ordinals: of the 31 bits of a magnitude, eight of the exponent and four of the mantissa.
NARROW_BINS: Final = 1 << 12
NARROW_SHIFT: Final = 31 - 12

#: Bins of float64 ordinals, for the subnormals of float32, which are normal there.
WIDE_BINS: Final = 1 << 15
WIDE_SHIFT: Final = 63 - 15

#: Tallies that are counted into in turn. An increment of a counter waits for the one before it of the same counter,
#: and neighbouring elements often have the same magnitude.
TALLIES: Final = 4


class Reduced(NamedTuple):
    """`Reduced` holds what the kernel adds to.

    Attributes:
        sums: Float64, by the positions `COUNT` to `MAGNITUDES`; the count is zero before the first block.
        counts: Int64, by the positions `ZEROS` to `SMALLEST`; the last is the ordinal of the smallest magnitude that
            is not zero. `LOW` and `HIGH` are the places of the extremes, which `float_at` reads.
        narrow: Int32, `TALLIES` by `NARROW_BINS`; of no bins where magnitudes are not counted.
        wide: Int64, `WIDE_BINS`.
    """

    sums: Array
    counts: Array
    narrow: Array
    wide: Array


COUNT, MEAN, SQUARED_DEVIATIONS, SQUARES, MAGNITUDES = range(5)
ZEROS, NANS, INFINITIES, NEGATIVE_INFINITIES, LOW, HIGH, SUBNORMAL, SMALLEST = range(8)

_MAGNITUDE: Final = np.int32(0x7FFFFFFF)
_INFINITY: Final = np.int32(0x7F800000)
_ONE: Final = np.int32(1)
_SIGN_SHIFT: Final = np.int32(31)
_FIRST_NORMAL: Final = np.int32(0x00800000 - 1)

#: What LLVM may assume about sums: that they can be reordered, not that there are no NaNs.
_REORDERED: Final = {"reassoc", "contract", "nsz"}


def _inner(loop: Any) -> Any:
    """Returns a loop as it is compiled into the kernel."""
    return nb.njit(nogil=True, fastmath=_REORDERED, error_model="numpy")(loop)


def float_at(place: int) -> float:
    """Returns the float32 at a place of their order."""
    bits = np.int32(place ^ ((place >> int(_SIGN_SHIFT)) & int(_MAGNITUDE)))
    return float(bits.view(np.float32))


@_inner
def _outline(values: Array) -> Any:
    """Returns the least and the greatest place, the number of zeros, and sums of the deviations from the first element.

    A place is a signed integer: the bits of a float, with those of the magnitude inverted where it is negative.

    Returns:
        Least place, greatest place, zeros, sum of deviations, sum of their squares.
    """
    bits = values.view(np.int32)
    first = np.float64(values[0])
    # Numba widens the results of arithmetic to 64 bits, which halves the lanes: hence the conversions.
    low, high, zeros = _MAGNITUDE, np.int32(~_MAGNITUDE), np.int32(0)
    total, squares = 0.0, 0.0
    for i in range(bits.size):
        place = np.int32(bits[i] ^ ((bits[i] >> _SIGN_SHIFT) & _MAGNITUDE))
        low = min(low, place)
        high = max(high, place)
        zeros = np.int32(zeros + np.int32((bits[i] & _MAGNITUDE) == 0))
        deviation = np.float64(values[i]) - first
        total += deviation
        squares += deviation * deviation
    return low, high, zeros, total, squares


@_inner
def _add_moments(values: Array, total: Any, squares: Any, sums: Array) -> None:
    """Adds the moments of a block.

    Args:
        values: The block, of finite elements.
        total: The sum of deviations from its first element.
        squares: The sum of their squares.
        sums: What is added to.
    """
    size = np.float64(values.size)
    shift = total / size
    mean = np.float64(values[0]) + shift
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


@_inner
def _sum_of_magnitudes(values: Array) -> Any:
    magnitudes = 0.0
    for i in range(values.size):
        magnitudes += np.abs(np.float64(values[i]))
    return magnitudes


@_inner
def _smallest(values: Array) -> Any:
    """Returns the smallest ordinal, of 31 bits; that of zero is the largest."""
    bits = values.view(np.int32)
    smallest = _MAGNITUDE
    for i in range(bits.size):
        smallest = min(smallest, np.int32((bits[i] - _ONE) & _MAGNITUDE))
    return smallest


@_inner
def _below(values: Array, limit: Any) -> int:
    bits = values.view(np.int32)
    number = np.int32(0)
    for i in range(bits.size):
        ordinal = np.int32((bits[i] - _ONE) & _MAGNITUDE)
        number = np.int32(number + np.int32(ordinal < limit))
    return int(number)


@_inner
def _tally(values: Array, narrow: Array) -> None:
    bits = values.view(np.uint32)
    shift = np.uint32(NARROW_SHIFT)
    full = bits.size - bits.size % TALLIES
    for i in range(0, full, TALLIES):
        for turn in range(TALLIES):
            narrow[turn, np.uint32((bits[i + turn] - _ONE) & _MAGNITUDE) >> shift] += 1
    for i in range(full, bits.size):
        narrow[0, np.uint32((bits[i] - _ONE) & _MAGNITUDE) >> shift] += 1


@_inner
def _tally_wide(values: Array, wide: Array) -> None:
    bits = values.astype(np.float64).view(np.uint64)
    for i in range(bits.size):
        wide[((bits[i] - np.uint64(1)) & np.uint64(0x7FFFFFFFFFFFFFFF)) >> np.uint64(WIDE_SHIFT)] += 1


@_inner
def _add_magnitudes(values: Array, limit: Any, reduced: Reduced) -> None:
    counts, smallest = reduced.counts, _smallest(values)
    counts[SMALLEST] = min(counts[SMALLEST], np.int64(smallest))
    reduced.sums[MAGNITUDES] += _sum_of_magnitudes(values)
    if smallest < limit:
        counts[SUBNORMAL] += _below(values, limit)
    if smallest < _FIRST_NORMAL:
        _tally_wide(values, reduced.wide)
    else:
        _tally(values, reduced.narrow)


@_inner
def _reduce_block(values: Array, finite: Array, limit: Any, reduced: Reduced) -> None:
    counts = reduced.counts
    low, high, zeros, total, squares = _outline(values)
    if low <= ~_INFINITY or high >= _INFINITY:
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
        low, high, zeros, total, squares = _outline(values)
    counts[ZEROS] += zeros
    counts[LOW] = min(counts[LOW], np.int64(low))
    counts[HIGH] = max(counts[HIGH], np.int64(high))
    _add_moments(values, total, squares, reduced.sums)
    if reduced.narrow.size:
        _add_magnitudes(values, limit, reduced)


@nb.njit(nogil=True, cache=True)
def reduce_floats(values: Array, limit: Any, reduced: Reduced) -> None:
    """Adds the reductions of float32 elements.

    Args:
        values: One-dimensional, contiguous, float32, read-only: numba compiles writable ones apart.
        limit: The ordinal of the smallest normal number of the tensor's own dtype, as int32.
        reduced: What is added to.
    """
    finite = np.empty(BLOCK, np.float32)
    for start in range(0, values.size, BLOCK):
        _reduce_block(values[start : start + BLOCK], finite, limit, reduced)
