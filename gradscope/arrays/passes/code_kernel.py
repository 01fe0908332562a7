"""`code_kernel` has the loops of the compiled pass over codes of 16 bits, in the subset of Python that numba compiles.

A code is the bit pattern of a bfloat16 or a float16. Each is widened in a register, and a block is only copied where it
has to be read again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.passes.accumulators import BLOCK, Accumulators
from gradscope.arrays.passes.block_kernel import MAGNITUDE, add_outline, all_finite, inner, place_of, reduce_block

#: Codes are signed integers here.
_HALF: Final = np.int32(16)
_HALF_MAGNITUDE: Final = np.int16(0x7FFF)
_HALF_SIGN_SHIFT: Final = np.int16(15)

#: How a float16 is widened. The bits of its magnitude are shifted to the place of those of a float32. In that place,
#: normal numbers and what is not finite begin here, and the exponents of all three kinds are raised by so much.
_MANTISSA_SHIFT: Final = np.int32(13)
_SHIFTED_MAGNITUDE: Final = np.int32(0x7FFF << 13)
_NORMAL: Final = np.int32(1 << 23)
_NOT_FINITE: Final = np.int32(31 << 23)
_BIAS_SUBNORMAL: Final = np.int32(113 << 23)
_BIAS: Final = np.int32(112 << 23)
_BIAS_NOT_FINITE: Final = np.int32(224 << 23)
_SMALLEST_NORMAL: Final = np.float32(2.0**-14)


@inner
def _of_bfloat16(code: Any) -> Any:
    return np.int32(np.int32(code) << _HALF).view(np.float32)


@inner
def _of_float16(code: Any) -> Any:
    bits = np.int32(code)
    magnitude = np.int32(np.int32(bits << _MANTISSA_SHIFT) & _SHIFTED_MAGNITUDE)
    # A subnormal is what it is above the smallest normal number. No subnormal of float32 is computed with: threads of
    # XLA take those for zeros.
    above = np.float32(np.int32(magnitude + _BIAS_SUBNORMAL).view(np.float32) - _SMALLEST_NORMAL).view(np.int32)
    other = np.int32(magnitude + (_BIAS if magnitude < _NOT_FINITE else _BIAS_NOT_FINITE))
    widened = np.int32(above if magnitude < _NORMAL else other)
    return np.int32(widened | np.int32(bits & ~MAGNITUDE)).view(np.float32)


@inner
def _half_place(code: Any) -> Any:
    return np.int16(code ^ np.int16(np.int16(code >> _HALF_SIGN_SHIFT) & _HALF_MAGNITUDE))


@inner
def _extremes(codes: Array) -> Any:
    """Returns the codes of the extremes, and the number of zeros, of at most `BLOCK` codes."""
    low, high, zeros = _HALF_MAGNITUDE, np.int16(~_HALF_MAGNITUDE), np.int16(0)
    for i in range(codes.size):
        place = _half_place(codes[i])
        low = min(low, place)
        high = max(high, place)
        zeros = np.int16(zeros + np.int16(np.int16(codes[i] & _HALF_MAGNITUDE) == 0))
    return _half_place(low), _half_place(high), np.int32(zeros)


def _outline_by(widened: Any) -> Any:
    """Returns the function that is to codes of 16 bits what `outline_of` is to float32."""

    @inner
    def wide_place(code: Any) -> Any:
        return place_of(np.float32(widened(code)).view(np.int32))

    @inner
    def outline(codes: Array) -> Any:
        low, high, zeros = _extremes(codes)  # in a loop of its own, which has twice the lanes
        first = np.float64(widened(codes[0]))
        total, squares = 0.0, 0.0
        for i in range(codes.size):
            deviation = np.float64(widened(codes[i])) - first
            total += deviation
            squares += deviation * deviation
        return wide_place(low), wide_place(high), zeros, total, squares

    return outline


def _reduce_codes_by(widened: Any) -> Any:
    outline_of = _outline_by(widened)

    @inner
    def reduce_codes(codes: Array, limit: Any, reduced: Accumulators, rooms: Array) -> None:
        for start in range(0, codes.size, BLOCK):
            block = codes[start : start + BLOCK]
            if not reduced.narrow.size:
                outline = outline_of(block)
                if all_finite(outline):
                    add_outline(widened(block[0]), block.size, outline, reduced)
                    continue
            values = rooms[1, : block.size]
            for i in range(block.size):
                values[i] = widened(block[i])
            reduce_block(values, rooms[0], limit, reduced)

    return reduce_codes


_reduce_bfloat16 = _reduce_codes_by(_of_bfloat16)
_reduce_float16 = _reduce_codes_by(_of_float16)


def reduce_bfloat16(codes: Array, limit: Any, reduced: Accumulators, rooms: Array) -> None:
    """Adds the reductions of elements.

    Args:
        codes: Their codes.
        limit: As for `NativeKernel.reduce_floats`.
        reduced: What is added to.
        rooms: Room for the finite elements of a block, and for a block of widened codes.
    """
    _reduce_bfloat16(codes, limit, reduced, rooms)


def reduce_float16(codes: Array, limit: Any, reduced: Accumulators, rooms: Array) -> None:
    """Adds the reductions of elements; arguments as for `reduce_bfloat16`."""
    _reduce_float16(codes, limit, reduced, rooms)


def count_words(fours: Array, tallies: Array) -> None:
    """Counts words of 16 bits, four of which are one element, into `TALLIES` tallies."""
    word, first, second, third = np.uint64(0xFFFF), np.uint64(16), np.uint64(32), np.uint64(48)
    for i in range(fours.size):
        four = fours[i]  # once: for all that is known, an increment may change it
        tallies[0, four & word] += 1
        tallies[1, (four >> first) & word] += 1
        tallies[2, (four >> second) & word] += 1
        tallies[3, four >> third] += 1
