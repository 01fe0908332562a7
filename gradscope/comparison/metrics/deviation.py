"""Deviation: how far single elements are from their partners, and where the worst one is.

Everything here is about positions where both sides are finite, and adds up over any chunking: counts and maxima
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.scratch import scratch
from gradscope.comparison.metrics.block_pairs import Slot
from gradscope.comparison.metrics.ulps import ulp_distances
from gradscope.comparison.precision import Yardstick

#: An element of a tensor as Python has it.
Scalar: TypeAlias = bool | int | float | complex


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The first position where the magnitude of the difference is largest.

    Attributes:
        magnitude: `|b - a|` there, not zero; inf where a float64 difference overflows.
        index: The position in C order.
        ref: The reference's element there.
        cand: The candidate's.
    """

    magnitude: float
    index: int
    ref: Scalar
    cand: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """What only floating-point elements have: a size below which a relation says nothing.

    Attributes:
        large: Number of elements with `|a| >= small(dtype)`.
        max_rel: The largest `|d| / |a|` among those; 0 where there is none.
        flipped: How many of those have the opposite sign on the other side.
    """

    large: int = 0
    max_rel: float = 0.0
    flipped: int = 0

    def __add__(self, other: Relations) -> Relations:
        return Relations(
            large=self.large + other.large,
            max_rel=max(self.max_rel, other.max_rel),
            flipped=self.flipped + other.flipped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulps:
    """Distances in units in the last place: the largest, and how many are above the dtype's allowance."""

    largest: int = 0
    above: int = 0

    def __add__(self, other: Ulps) -> Ulps:
        return Ulps(largest=max(self.largest, other.largest), above=self.above + other.above)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The elements of a pair.

    Attributes:
        count: Number of positions compared.
        peak: Where the difference is largest; None where there is no difference.
        mismatched: How many have `|d| > atol + rtol |a|`.
        relations: For floating-point and complex elements.
        ulps: For floating-point elements.
    """

    count: int = 0
    peak: Peak | None = None
    mismatched: int = 0
    relations: Relations = field(default_factory=Relations)
    ulps: Ulps = field(default_factory=Ulps)

    def __add__(self, other: Deviation) -> Deviation:
        return Deviation(
            count=self.count + other.count,
            peak=_higher(self.peak, other.peak),
            mismatched=self.mismatched + other.mismatched,
            relations=self.relations + other.relations,
            ulps=self.ulps + other.ulps,
        )

    def moved(self, offset: int) -> Deviation:
        """The same elements, `offset` positions further on."""
        return self if self.peak is None else replace(self, peak=replace(self.peak, index=self.peak.index + offset))


def peak_of(ref: Array, cand: Array, distances: Array) -> Peak | None:
    """Where the distance of two blocks is largest; None where it is zero everywhere."""
    index = int(distances.argmax())
    if not distances[index]:
        return None
    return Peak(magnitude=distances[index].item(), index=index, ref=ref[index].item(), cand=cand[index].item())


def mismatches(magnitudes: Array, distances: Array, yardstick: Yardstick) -> int:
    """Number of elements with `distance > atol + rtol magnitude`."""
    allowed = np.multiply(magnitudes, yardstick.rtol, out=scratch(Slot.WORK, magnitudes.size, np.float64))
    allowed += yardstick.atol
    return int(np.count_nonzero(np.greater(distances, allowed, out=scratch(Slot.MASK, allowed.size, np.bool_))))


def relations_of(magnitudes: Array, distances: Array, small: Array) -> Relations:
    """The relations of a block, sign flips apart, which magnitudes do not tell.

    Args:
        magnitudes: |a|.
        distances: |d|.
        small: Which elements are too small for a relation; those of no magnitude are.
    """
    ratios = np.divide(distances, magnitudes, out=scratch(Slot.WORK, magnitudes.size, np.float64))
    few = int(np.count_nonzero(small))
    if few:
        np.copyto(ratios, 0.0, where=small)
    return Relations(large=magnitudes.size - few, max_rel=float(ratios.max()))


def sign_flips(ref: Array, cand: Array, small: float) -> int:
    """Number of elements of opposite sign where `|ref| >= small`."""
    return int(np.count_nonzero((ref >= small) & (cand < 0)) + np.count_nonzero((ref <= -small) & (cand > 0)))


def ulps_of(ref: Array, cand: Array, allowance: int) -> Ulps:
    """The distances in units in the last place of a block; arguments as for `ulp_distances`."""
    distances = ulp_distances(ref, cand)
    largest = int(distances.max())
    if largest <= allowance:
        return Ulps(largest=largest)
    above = np.greater(distances, allowance, out=scratch(Slot.MASK, distances.size, np.bool_))
    return Ulps(largest=largest, above=int(np.count_nonzero(above)))


def _higher(first: Peak | None, second: Peak | None) -> Peak | None:
    if first is None or second is None:
        return first or second
    return second if second.magnitude > first.magnitude else first
