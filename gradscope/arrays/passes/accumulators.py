"""`Accumulators` are what the compiled loops of `block_kernel` add to, block by block."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.magnitudes import FLOAT32

#: Elements that stay in the cache, with a copy of the finite ones. 2 Ki to 64 Ki are equally fast in float32; 16 Ki of
#: bfloat16, which are widened first, take a third longer.
BLOCK: Final = 1 << 13

#: Bins of float32 ordinals: of the 31 bits of a magnitude, eight of the exponent and four of the mantissa.
NARROW_BINS: Final = 1 << 12
NARROW_SHIFT: Final = 31 - 12

#: Bins of float64 ordinals, for the subnormals of float32, which are normal there.
WIDE_BINS: Final = 1 << 15
WIDE_SHIFT: Final = 63 - 15

#: Tallies that are counted into in turn. An increment of a counter waits for the one before it of the same counter,
#: and neighbouring elements often have the same magnitude.
TALLIES: Final = 4

#: Words of 16 bits, and how far apart the counts of one are in two tallies: not by a multiple of 4 KiB, at which a load
#: waits for a store of another word.
WORDS: Final = 1 << 16
WORDS_APART: Final = WORDS + 272

COUNT, MEAN, SQUARED_DEVIATIONS, SQUARES, MAGNITUDES = range(5)
ZEROS, NANS, INFINITIES, NEGATIVE_INFINITIES, LOW, HIGH, SUBNORMAL, SMALLEST = range(8)

_SIGN_SHIFT: Final = 31

#: The highest place of a float; the complement is the lowest.
_HIGHEST_PLACE: Final = 0x7FFFFFFF


class Accumulators(NamedTuple):
    """`Accumulators` are the sums and counts of a stretch of float32 elements.

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

    @classmethod
    def fresh(cls, *, magnitudes: bool) -> Self:
        """Returns accumulators to which nothing has been added.

        Args:
            magnitudes: As for `reduce_array`.
        """
        sums, counts = np.zeros(MAGNITUDES + 1, np.float64), np.zeros(SMALLEST + 1, np.int64)
        counts[[LOW, HIGH, SMALLEST]] = _HIGHEST_PLACE, ~_HIGHEST_PLACE, FLOAT32.zero_ordinal
        narrow = np.zeros((TALLIES, NARROW_BINS if magnitudes else 0), np.int32)
        return cls(sums, counts, narrow, np.zeros(WIDE_BINS if magnitudes else 0, np.int64))


def float_at(place: int) -> float:
    """Returns the float32 at a place of their order."""
    return float(np.int32(place ^ ((place >> _SIGN_SHIFT) & _HIGHEST_PLACE)).view(np.float32))
