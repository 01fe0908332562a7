"""`block_kernel` has the loops of the compiled pass, in the subset of Python that numba compiles.
Importing this module compiles nothing. Only the process that compiles them imports it.

The kernel reads float32, or bfloat16, which is the upper half of it, in blocks of `BLOCK` elements. One loop fetches a
block from memory and computes all that has no need of magnitudes, as integers, whose order is that of the floats, and
as float64: loops over a block that is in the cache take longer than memory, and the memory waits for them. What is
computed of magnitudes reads the block again. No loop has branches, and all vectorise, except the one that counts by
magnitude.
"""

from __future__ import annotations

from typing import Any, Final

import numba as nb
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.passes.accumulators import (
    BLOCK,
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

_MAGNITUDE: Final = np.int32(0x7FFFFFFF)
_INFINITY: Final = np.int32(0x7F800000)
_ONE: Final = np.int32(1)
_SIGN_SHIFT: Final = np.int32(31)
_HALF: Final = np.uint32(16)
_FIRST_NORMAL: Final = np.int32(0x00800000 - 1)

#: What LLVM may assume about sums: that they can be reordered, not that there are no NaNs.
_REORDERED: Final = {"reassoc", "contract", "nsz"}

#: Neither references are counted nor errors raised: the loops call nothing outside themselves, and run without numba.
_OPTIONS: Final[dict[str, Any]] = {"_nrt": False, "error_model": "numpy"}


def _inner(loop: Any) -> Any:
    """Returns a loop as it is compiled into the kernel."""
    return nb.njit(fastmath=_REORDERED, **_OPTIONS)(loop)


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
    for i in range(values.size):
        bits: Any = np.float64(values[i]).view(np.uint64)
        wide[((bits - np.uint64(1)) & np.uint64(0x7FFFFFFFFFFFFFFF)) >> np.uint64(WIDE_SHIFT)] += 1


@_inner
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


@_inner
def _reduce_block(values: Array, finite: Array, limit: Any, reduced: Accumulators) -> None:
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


@_inner
def _widen(halves: Array, values: Array) -> None:
    bits = values.view(np.uint32)
    for i in range(halves.size):
        bits[i] = np.uint32(np.uint32(halves[i]) << _HALF)


def _reduce_floats(values: Array, halves: Array, limit: Any, reduced: Accumulators, rooms: Array) -> None:
    finite = rooms[0]
    for start in range(0, values.size, BLOCK):
        _reduce_block(values[start : start + BLOCK], finite, limit, reduced)
    for start in range(0, halves.size, BLOCK):
        block = rooms[1, : min(BLOCK, halves.size - start)]
        _widen(halves[start : start + BLOCK], block)
        _reduce_block(block, finite, limit, reduced)


def compiled_loops() -> str:
    """Compiles the loops for this machine's processor.

    Returns:
        A module in LLVM's language, optimised. Its one function that is visible from outside adds the reductions of
        float32 elements, and of the upper halves of such, to accumulators; its arguments are those of `_reduce_floats`,
        as numba passes them. The last is room for the finite elements of a block, and for those of halves.
    """
    types: Any = nb.types
    values, halves = (types.Array(each, 1, "C", readonly=True) for each in (nb.float32, nb.uint16))
    totals = types.NamedTuple((nb.float64[::1], nb.int64[::1], nb.int32[:, ::1], nb.int64[::1]), Accumulators)
    signature: Any = nb.void(values, halves, nb.int32, totals, nb.float32[:, ::1])
    options: Any = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return next(iter(nb.njit(signature, **options)(_reduce_floats).inspect_llvm().values()))
