"""Magnitude histograms count the non-zero finite elements of a tensor by magnitude, in logarithmic bins.

A *bin* is identified by the exponent and the top four mantissa bits of a float64, so each octave has sixteen bins. Bins
are open below and closed above: `(edge, next edge]`. This makes counts up to a power of two exact, such as the number
of elements that round to zero in float16: half of its smallest subnormal still does (ties go to even).

Sharp edge: the subnormals of float64, below 2.2e-308, share sixteen bins of equal width, so that their quantiles
have to come from the tensor itself.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final

import numpy as np

BINS_PER_OCTAVE: Final = 16
EXPONENT_BIAS: Final = 1023
#: Number of bins; the last one ends at the largest float64.
BINS: Final = 2047 * BINS_PER_OCTAVE
#: The smallest magnitude whose octave has bins of its own.
SMALLEST_NORMAL: Final = 2.0**-1022
_EDGE_SHIFT: Final = 52 - 4

#: Half the smallest subnormal of each type: the largest magnitude that rounds to zero in it, ties to even.
UNDERFLOW_LIMITS: Final[Mapping[str, float]] = MappingProxyType(
    {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}
)


@dataclass(frozen=True, slots=True)
class MagnitudeHistogram:
    """A `MagnitudeHistogram` has the number of non-zero finite magnitudes in each bin.

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
        """Number of counted elements: the non-zero finite ones."""
        return sum(self.counts)

    def at_most_power(self, limit: float) -> int:
        """Returns the exact number of magnitudes that are at most `limit`, a normal power of two."""
        return sum(self.counts[: max(self.first_above(limit) - self.first, 0)])

    @staticmethod
    def first_above(limit: float) -> int:
        """Returns the number of the first bin whose magnitudes are above `limit`, a normal power of two."""
        return (math.frexp(limit)[1] - 1 + EXPONENT_BIAS) * BINS_PER_OCTAVE

    def at_rank(self, rank: int) -> float:
        """Returns the magnitude at a rank, with a relative error of at most 1/32.

        Args:
            rank: 1 for the smallest, `total` for the largest.

        Returns:
            The middle of the bin that contains the element.
        """
        position = bisect_left(list(accumulate(self.counts)), rank)
        low, high = _edge(self.first + position), _edge(self.first + position + 1)
        return low / 2 + high / 2

    def octaves(self) -> Iterator[tuple[int, int]]:
        """Yields pairs of an exponent `e` and the number of magnitudes in `(2^e, 2^(e+1)]`, in order, without gaps."""
        for octave in range(self.first // BINS_PER_OCTAVE, -(-self.end // BINS_PER_OCTAVE)):
            start = octave * BINS_PER_OCTAVE - self.first
            yield octave - EXPONENT_BIAS, sum(self.counts[max(start, 0) : start + BINS_PER_OCTAVE])


def _edge(bin_number: int) -> float:
    return struct.unpack("=d", struct.pack("=Q", bin_number << _EDGE_SHIFT))[0]
