"""Elementwise errors are `max_abs` with its position, `max_rel`, `mismatch`, `sign_flip`, and distances in ulps.

All of them are over positions where both tensors are finite. The errors of chunks add up to those of the tensor
exactly, because they are counts and maxima.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.scratch import scratch
from gradscope.comparison.metrics.block_pairs import BlockBuffer
from gradscope.comparison.metrics.ulps import ulp_distances
from gradscope.comparison.precision import Scale

#: An element of a tensor as a Python number.
Scalar: TypeAlias = bool | int | float | complex


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak is the first position at which the magnitude of the difference is largest.

    Attributes:
        magnitude: `|b - a|` there, not zero; inf where a float64 difference overflows.
        index: The position in C order.
        ref: The reference's element there.
        cand: The candidate's element there.
    """

    magnitude: float
    index: int
    ref: Scalar
    cand: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeErrors:
    """RelativeErrors stores errors relative to elements that are not too small, see `Scale.small`.

    Attributes:
        large: Number of elements with `|a| >= small`.
        max_rel: The largest `|d| / |a|` among those; 0 where there is none.
        flipped: How many of those have the opposite sign in the candidate.
    """

    large: int = 0
    max_rel: float = 0.0
    flipped: int = 0

    def __add__(self, other: RelativeErrors) -> RelativeErrors:
        return RelativeErrors(
            large=self.large + other.large,
            max_rel=max(self.max_rel, other.max_rel),
            flipped=self.flipped + other.flipped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulps:
    """Ulps stores the largest distance in ulps, and how many distances are above the dtype's allowance."""

    largest: int = 0
    above: int = 0

    def __add__(self, other: Ulps) -> Ulps:
        return Ulps(largest=max(self.largest, other.largest), above=self.above + other.above)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseErrors:
    """ElementwiseErrors stores the errors of a pair's elements.

    Attributes:
        count: Number of positions compared.
        peak: The position of the largest difference; None where there is no difference.
        mismatched: Number of elements with `|d| > atol + rtol |a|`.
        relative: Relative errors of floating-point and complex elements.
        ulps: Distances in ulps of floating-point elements.
    """

    count: int = 0
    peak: Peak | None = None
    mismatched: int = 0
    relative: RelativeErrors = field(default_factory=RelativeErrors)
    ulps: Ulps = field(default_factory=Ulps)

    def __add__(self, other: ElementwiseErrors) -> ElementwiseErrors:
        return ElementwiseErrors(
            count=self.count + other.count,
            peak=_higher(self.peak, other.peak),
            mismatched=self.mismatched + other.mismatched,
            relative=self.relative + other.relative,
            ulps=self.ulps + other.ulps,
        )

    def shifted(self, offset: int) -> ElementwiseErrors:
        """Returns the same errors with positions shifted by `offset`."""
        return self if self.peak is None else replace(self, peak=replace(self.peak, index=self.peak.index + offset))


def peak_of(ref: Array, cand: Array, distances: Array) -> Peak | None:
    """Returns the position of the largest distance in a block; None where all distances are zero."""
    index = int(distances.argmax())
    if not distances[index]:
        return None
    return Peak(magnitude=distances[index].item(), index=index, ref=ref[index].item(), cand=cand[index].item())


def mismatches(magnitudes: Array, distances: Array, scale: Scale) -> int:
    """Returns the number of elements with `distance > atol + rtol * magnitude`."""
    allowed = np.multiply(magnitudes, scale.rtol, out=scratch(BlockBuffer.WORK, magnitudes.size, np.float64))
    allowed += scale.atol
    return int(np.count_nonzero(np.greater(distances, allowed, out=scratch(BlockBuffer.MASK, allowed.size, np.bool_))))


def relative_errors_of(magnitudes: Array, distances: Array, small: Array) -> RelativeErrors:
    """Returns the relative errors of a block; `flipped` stays 0, because it does not follow from magnitudes.

    Args:
        magnitudes: |a|.
        distances: |d|.
        small: Which elements are too small for a relative error; it includes all that are zero.
    """
    ratios = np.divide(distances, magnitudes, out=scratch(BlockBuffer.WORK, magnitudes.size, np.float64))
    few = int(np.count_nonzero(small))
    if few:
        np.copyto(ratios, 0.0, where=small)
    return RelativeErrors(large=magnitudes.size - few, max_rel=float(ratios.max()))


def sign_flips(ref: Array, cand: Array, small: float) -> int:
    """Returns the number of elements of opposite sign where `|ref| >= small`."""
    return int(np.count_nonzero((ref >= small) & (cand < 0)) + np.count_nonzero((ref <= -small) & (cand > 0)))


def ulps_of(ref: Array, cand: Array, allowance: int) -> Ulps:
    """Returns the distances in ulps of a block; the arguments are those of `ulp_distances`."""
    distances = ulp_distances(ref, cand)
    largest = int(distances.max())
    if largest <= allowance:
        return Ulps(largest=largest)
    above = np.greater(distances, allowance, out=scratch(BlockBuffer.MASK, distances.size, np.bool_))
    return Ulps(largest=largest, above=int(np.count_nonzero(above)))


def _higher(first: Peak | None, second: Peak | None) -> Peak | None:
    if first is None or second is None:
        return first or second
    return second if second.magnitude > first.magnitude else first
