"""Magnitude histograms: how large the non-zero finite elements of a tensor are, in logarithmic bins.

A *bin* is named by the exponent and the top four mantissa bits of a float64, so it is a sixteenth of an octave. Bins
are open below and closed above: `(edge, next edge]`. That is what makes counts at a power of two exact, as in "how many
of these round to zero in float16": exactly half of the smallest subnormal still does (ties go to even).

Sharp edge: float64's own subnormals, below 2.2e-308, share sixteen bins of equal width.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final

import numpy as np

BINS_PER_OCTAVE: Final = 16
EXPONENT_BIAS: Final = 1023
#: The last of them ends where float64 does.
BINS: Final = 2047 * BINS_PER_OCTAVE
_EDGE_SHIFT: Final = 52 - 4

#: Half the smallest subnormal of each type: the largest magnitude that rounds to zero in it, ties to even.
UNDERFLOW_LIMITS: Final[Mapping[str, float]] = MappingProxyType(
    {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}
)


@dataclass(frozen=True, slots=True)
class MagnitudeHistogram:
    """Counts of non-zero finite magnitudes by bin.

    Attributes:
        first: Number of the first bin in `counts`; 0 where there are none.
        counts: Elements per bin, from the first occupied bin to the last.
    """

    first: int = 0
    counts: tuple[int, ...] = ()

    def __add__(self, other: MagnitudeHistogram) -> MagnitudeHistogram:
        if not self.counts or not other.counts:
            return self if self.counts else other
        first = min(self.first, other.first)
        total = np.zeros(max(self.end, other.end) - first, np.int64)
        for each in (self, other):
            total[each.first - first : each.end - first] += each.counts
        return MagnitudeHistogram(first, tuple(total.tolist()))

    @property
    def end(self) -> int:
        """Number of the bin after the last."""
        return self.first + len(self.counts)

    @property
    def total(self) -> int:
        """How many elements were counted: the non-zero finite ones."""
        return sum(self.counts)

    def at_most_power(self, limit: float) -> int:
        """How many magnitudes are at most `limit`, a normal power of two; exact."""
        end = (math.frexp(limit)[1] - 1 + EXPONENT_BIAS) * BINS_PER_OCTAVE
        return sum(self.counts[: max(end - self.first, 0)])

    def at_rank(self, rank: int) -> float:
        """The magnitude at a rank, to 1/32 of it.

        Args:
            rank: 1 for the smallest, `total` for the largest.

        Returns:
            The middle of the bin that holds that element.
        """
        position = bisect_left(list(accumulate(self.counts)), rank)
        low, high = _edge(self.first + position), _edge(self.first + position + 1)
        return low / 2 + high / 2

    def octaves(self) -> Iterator[tuple[int, int]]:
        """Pairs of exponent `e` and how many magnitudes are in `(2^e, 2^(e+1)]`, in order, without gaps."""
        for octave in range(self.first // BINS_PER_OCTAVE, -(-self.end // BINS_PER_OCTAVE)):
            start = octave * BINS_PER_OCTAVE - self.first
            yield octave - EXPONENT_BIAS, sum(self.counts[max(start, 0) : start + BINS_PER_OCTAVE])


def _edge(bin_number: int) -> float:
    return float(np.array([bin_number << _EDGE_SHIFT], np.uint64).view(np.float64)[0])
