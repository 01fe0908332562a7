"""Magnitudes: how large the finite elements of an array are, counted from their bit patterns block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.histograms import BINS_PER_OCTAVE, EXPONENT_BIAS, MagnitudeHistogram
from gradscope.arrays.scratch import Slot, scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """The magnitudes of the finite elements: what only the full tier knows.

    Attributes:
        total: Their sum, the l1 norm.
        smallest: The smallest that is not zero; infinite where all are.
        subnormal: How many are subnormal in the array's own dtype.
        histogram: The non-zero ones, counted by bin.
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
        smallest_normal: Magnitudes below it, other than zero, are the subnormal ones.
    """

    def __init__(self, smallest_normal: float) -> None:
        self._smallest_normal = smallest_normal
        self._total = 0.0
        self._smallest = math.inf
        self._subnormal = 0
        self._tallies: dict[_Layout, Array] = {}

    def add(self, values: Array, total: float) -> int:
        """Take in a block.

        Args:
            values: One-dimensional, contiguous, float32 or float64, not empty, all finite.
            total: The sum of their magnitudes.

        Returns:
            How many of them are zero: those that no bin has.
        """
        layout = _LAYOUTS[values.dtype]
        ordinals = layout.ordinals(values)
        lowest = ordinals.min()
        self._total += total
        self._smallest = min(self._smallest, layout.magnitude_of(lowest))
        if lowest < (limit := layout.ordinal_of(self._smallest_normal)):
            self._subnormal += int(np.count_nonzero(ordinals < limit))
        if lowest < layout.first_normal and layout is not _FLOAT64:
            # A subnormal has no exponent of its own to be counted by; as a float64 it is normal.
            layout, ordinals = _FLOAT64, _FLOAT64.ordinals(values.astype(np.float64))
        # `bincount` is two fifths of the whole pass; sorting, `histogram` and 16-bit bin numbers were slower.
        numbers = scratch(Slot.WORK, ordinals.size, np.intp)
        np.right_shift(ordinals, layout.shift, out=numbers, casting="unsafe")
        tally = np.bincount(numbers, minlength=layout.bins)[: layout.bins]
        known = self._tallies.get(layout)
        self._tallies[layout] = tally if known is None else known + tally
        return values.size - int(tally.sum())

    def result(self) -> Magnitudes:
        """What has been counted so far."""
        return Magnitudes(
            total=self._total, smallest=self._smallest, subnormal=self._subnormal, histogram=self._histogram()
        )

    def _histogram(self) -> MagnitudeHistogram:
        histograms = (_histogram(tally, layout.offset) for layout, tally in self._tallies.items())
        return sum(histograms, MagnitudeHistogram())


def _histogram(tally: Array, offset: int) -> MagnitudeHistogram:
    """The histogram of a tally whose first bin has the number `offset`."""
    occupied = np.flatnonzero(tally)
    if not occupied.size:
        return MagnitudeHistogram()
    first, last = int(occupied[0]), int(occupied[-1])
    return MagnitudeHistogram(offset + first, tuple(tally[first : last + 1].tolist()))


class _Layout:
    """How the bit patterns of one float format become bin numbers.

    The *ordinal* of a value is the bit pattern of its magnitude less one. It orders magnitudes, closes bins above and
    not below, and wraps zero round to the largest ordinal of all: beyond the bins of all finite values.
    """

    def __init__(self, dtype: type[np.floating[Any]], word: type[np.unsignedinteger[Any]]) -> None:
        info = np.finfo(dtype)
        self.dtype = np.dtype(dtype)
        self.word = word
        self.one = word(1)
        self.zero_ordinal = word(np.iinfo(word).max // 2)
        self.shift = word(info.nmant - 4)
        self.bins = (int(info.maxexp) - int(info.minexp) + 1) * BINS_PER_OCTAVE
        self.offset = (EXPONENT_BIAS + int(info.minexp) - 1) * BINS_PER_OCTAVE
        self.first_normal = self.ordinal_of(float(info.smallest_normal))

    def ordinals(self, values: Array) -> Array:
        """The ordinal of each value, whatever its sign."""
        ordinals = scratch(Slot.ORDINALS, values.size, self.word)
        np.subtract(values.view(self.word), self.one, out=ordinals)
        return np.bitwise_and(ordinals, self.zero_ordinal, out=ordinals)

    def ordinal_of(self, magnitude: float) -> np.unsignedinteger[Any]:
        """The ordinal of one positive magnitude."""
        return np.array([magnitude], self.dtype).view(self.word)[0] - self.one

    def magnitude_of(self, ordinal: np.unsignedinteger[Any]) -> float:
        """The magnitude of an ordinal; infinite for that of zero."""
        if ordinal == self.zero_ordinal:
            return math.inf
        return float(np.array([ordinal + self.one], self.word).view(self.dtype)[0])


_FLOAT64: Final = _Layout(np.float64, np.uint64)
_LAYOUTS: Final = {layout.dtype: layout for layout in (_FLOAT64, _Layout(np.float32, np.uint32))}
