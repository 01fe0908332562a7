"""`block_kernel` has the loops of the compiled pass, in the subset of Python that numba compiles.
Importing this module compiles nothing.

The kernel reads float32 in blocks of `BLOCK` elements that stay in the first-level cache, and reads each block
several times: as integers, whose order is that of the floats, and as float64. So each loop has few results and no
branches, and vectorises, except the one that counts by magnitude.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba as nb
import numpy as np

from gradscope.arrays.blocks import Array

#: Elements that stay in the first-level cache, with a copy of the finite ones.
BLOCK: Final = 4096

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
        sums: Float64, by the positions `COUNT` to `HIGH`; the count is zero before the first block.
        counts: Int64, by the positions `ZEROS` to `SMALLEST`; the last is the ordinal of the smallest magnitude that
            is not zero.
        narrow: Int32, `TALLIES` by `NARROW_BINS`; of no bins where magnitudes are not counted.
        wide: Int64, `WIDE_BINS`.
    """

    sums: Array
    counts: Array
    narrow: Array
    wide: Array


COUNT, MEAN, SQUARED_DEVIATIONS, SQUARES, MAGNITUDES, LOW, HIGH = range(7)
ZEROS, NANS, INFINITIES, NEGATIVE_INFINITIES, SUBNORMAL, SMALLEST = range(6)

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


@_inner
def _places(values: Array) -> Any:
    """Returns the least and the greatest place of the elements in the order of floats, and the number of zeros.

    A place is a signed integer: the bits of a float, with those of the magnitude inverted where it is negative.
    """
    bits = values.view(np.int32)
    # Numba widens the results of arithmetic to 64 bits, which halves the lanes: hence the conversions.
    low, high, zeros = _MAGNITUDE, np.int32(~_MAGNITUDE), np.int32(0)
    for i in range(bits.size):
        place = np.int32(bits[i] ^ ((bits[i] >> _SIGN_SHIFT) & _MAGNITUDE))
        low = min(low, place)
        high = max(high, place)
        zeros = np.int32(zeros + np.int32((bits[i] & _MAGNITUDE) == 0))
    return low, high, zeros


@_inner
def _float_at(place: Any) -> Any:
    bits = np.empty(1, np.int32)
    bits[0] = place ^ ((place >> _SIGN_SHIFT) & _MAGNITUDE)
    return np.float64(bits.view(np.float32)[0])


@_inner
def _total(values: Array) -> Any:
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i])
    return total


@_inner
def _squared_deviations(values: Array, mean: Any) -> Any:
    deviations = 0.0
    for i in range(values.size):
        deviation = np.float64(values[i]) - mean
        deviations += deviation * deviation
    return deviations


@_inner
def _add_moments(values: Array, low: Any, high: Any, sums: Array) -> None:
    size = np.float64(values.size)
    mean = _total(values) / size
    deviations = _squared_deviations(values, mean)
    before = sums[COUNT]
    count = before + size
    apart = mean - sums[MEAN]
    # The update of Chan, Golub and LeVeque, as in `gradscope.arrays.moments`.
    sums[MEAN] += apart * (size / count)
    sums[SQUARED_DEVIATIONS] += deviations + apart * apart * (before * (size / count))
    sums[COUNT] = count
    sums[SQUARES] += deviations + size * mean * mean
    sums[LOW] = min(sums[LOW], _float_at(low)) if before else _float_at(low)
    sums[HIGH] = max(sums[HIGH], _float_at(high)) if before else _float_at(high)


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
    low, high, zeros = _places(values)
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
        low, high, zeros = _places(values)
    counts[ZEROS] += zeros
    _add_moments(values, low, high, reduced.sums)
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
