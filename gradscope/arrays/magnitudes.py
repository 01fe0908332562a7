"""Counts the finite elements of an array by magnitude, from their bit patterns, block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.histograms import BINS_PER_OCTAVE, EXPONENT_BIAS, MagnitudeHistogram
from gradscope.arrays.scratch import ScratchSlot, scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """`Magnitudes` are the reductions of the finite elements' magnitudes, which only the full tier has.

    Attributes:
        total: Their sum, the l1 norm.
        smallest: The smallest magnitude that is not zero; infinite where all are zero.
        subnormal: Number of elements that are subnormal in the array's own dtype.
        histogram: The non-zero magnitudes, counted by bin.
    """

    total: float
    smallest: float
    subnormal: int
    histogram: MagnitudeHistogram

    def __add__(self, other: Magnitudes) -> Magnitudes:
        return Magnitudes(
            total=self.total + other.total,
            smallest=min(self.smallest, other.smallest),
            subnormal=self.subnormal + other.subnormal,
            histogram=self.histogram + other.histogram,
        )


class MagnitudeCounter:
    """Counts the magnitudes of finite float32 and float64 blocks.

    Args:
        smallest_normal: The smallest normal number of the array's dtype; smaller magnitudes count as subnormal.
    """

    def __init__(self, smallest_normal: float) -> None:
        self._smallest_normal = smallest_normal
        self._total = 0.0
        self._smallest = math.inf
        self._subnormal = 0
        self._tallies: dict[FloatFormat, Array] = {}

    def add(self, values: Array, total: float) -> int:
        """Adds a block.

        Args:
            values: One-dimensional, contiguous, float32 or float64, not empty, all finite.
            total: The sum of their magnitudes.

        Returns:
            The number of zeros, which are in no bin.
        """
        bits = _FORMATS[values.dtype]
        ordinals = bits.ordinals(values)
        lowest = ordinals.min()
        self._total += total
        self._smallest = min(self._smallest, bits.magnitude_of(lowest))
        if lowest < (limit := bits.ordinal_of(self._smallest_normal)):
            self._subnormal += int(np.count_nonzero(ordinals < limit))
        if lowest < bits.first_normal and bits is not FLOAT64:
            # A float32 subnormal has no exponent that would identify its bin. As a float64 it is normal.
            bits, ordinals = FLOAT64, FLOAT64.ordinals(values.astype(np.float64))
        numbers = scratch(ScratchSlot.WORK, ordinals.size, np.intp)
        np.right_shift(ordinals, bits.shift, out=numbers, casting="unsafe")
        counts = np.bincount(numbers, minlength=bits.zero_bin + 1)  # a third of the complete pass
        self._tallies[bits] = self._tallies[bits] + counts if bits in self._tallies else counts
        return int(counts[bits.zero_bin])

    def result(self) -> Magnitudes:
        """Returns the reductions of all added blocks."""
        return Magnitudes(
            total=self._total, smallest=self._smallest, subnormal=self._subnormal, histogram=self._histogram()
        )

    def _histogram(self) -> MagnitudeHistogram:
        histograms = (bits.histogram(tally) for bits, tally in self._tallies.items())
        return sum(histograms, MagnitudeHistogram())


class FloatFormat:
    """A `FloatFormat` maps the bit patterns of one floating-point format to bin numbers.

    The *ordinal* of a value is the bit pattern of its magnitude, minus one. Ordinals are in the order of magnitudes.
    Because of the minus one, bins are closed above and open below, and zero wraps around to the largest ordinal, behind
    the bins of all finite values.
    """

    def __init__(self, dtype: type[np.floating[Any]], word: type[np.unsignedinteger[Any]]) -> None:
        info = np.finfo(dtype)
        self.dtype = np.dtype(dtype)
        self.word = word
        self.one = word(1)
        self.zero_ordinal = word(np.iinfo(word).max // 2)
        self.shift = word(info.nmant - 4)
        self.zero_bin = int(self.zero_ordinal >> self.shift)
        self.bins = (int(info.maxexp) - int(info.minexp) + 1) * BINS_PER_OCTAVE
        self.offset = (EXPONENT_BIAS + int(info.minexp) - 1) * BINS_PER_OCTAVE
        self.first_normal = self.ordinal_of(float(info.smallest_normal))

    def ordinals(self, values: Array) -> Array:
        """Returns the ordinal of each value's magnitude."""
        ordinals = scratch(ScratchSlot.ORDINALS, values.size, self.word)
        np.subtract(values.view(self.word), self.one, out=ordinals)
        return np.bitwise_and(ordinals, self.zero_ordinal, out=ordinals)

    def ordinal_of(self, magnitude: float) -> np.unsignedinteger[Any]:
        """Returns the ordinal of one positive magnitude."""
        return np.array([magnitude], self.dtype).view(self.word)[0] - self.one

    def magnitude_of(self, ordinal: np.unsignedinteger[Any]) -> float:
        """Returns the magnitude of an ordinal; infinity for the ordinal of zero."""
        if ordinal == self.zero_ordinal:
            return math.inf
        return float(np.array([ordinal + self.one], self.word).view(self.dtype)[0])

    def histogram(self, tally: Array) -> MagnitudeHistogram:
        """Returns the histogram of the counts of each bin, which those of larger ones and of zeros may follow."""
        occupied = np.flatnonzero(tally[: self.bins] != 0)  # of truth values in an eighth of the time
        if not occupied.size:
            return MagnitudeHistogram()
        first, last = int(occupied[0]), int(occupied[-1])
        return MagnitudeHistogram(self.offset + first, tuple(tally[first : last + 1].tolist()))


FLOAT64: Final = FloatFormat(np.float64, np.uint64)
FLOAT32: Final = FloatFormat(np.float32, np.uint32)
_FORMATS: Final = {each.dtype: each for each in (FLOAT64, FLOAT32)}
