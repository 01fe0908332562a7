"""Measuring: every metric of two tensors from their elements, in one pass, a cache's worth at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import encode
from gradscope.arrays.moments import inner
from gradscope.arrays.scratch import scratch
from gradscope.arrays.widening import real_values
from gradscope.comparison.metrics.alignment import alignment_of
from gradscope.comparison.metrics.block_pairs import Pair, Slot, same_bytes
from gradscope.comparison.metrics.deviation import (
    Deviation,
    Relations,
    Ulps,
    mismatches,
    peak_of,
    relations_of,
    sign_flips,
    ulps_of,
)
from gradscope.comparison.metrics.metrics import Metrics
from gradscope.comparison.precision import Yardstick, saturating_cast


def measure(pairs: Iterable[Pair], yardstick: Yardstick) -> Metrics:
    """The metrics of two tensors, or of two stretches of them.

    Args:
        pairs: Their blocks in C order.
        yardstick: What they are measured against.

    Returns:
        Their metrics.
    """
    total = Metrics(kind=yardstick.kind)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        for one, other in pairs:
            bit_equal = total.bit_equal and same_bytes(one, other)
            total += replace(_measured_block(one, other, yardstick), bit_equal=bit_equal)
    return total


def _measured_block(ref: Array, cand: Array, yardstick: Yardstick) -> Metrics:
    if yardstick.kind not in ("float", "complex"):
        return _exact_block(ref, cand, yardstick)
    one, other = _widened(ref, Slot.REF), _widened(cand, Slot.CAND)
    difference = np.subtract(other, one, out=scratch(Slot.DIFFERENCE, one.size, np.float64))
    square = inner(difference, difference)
    # Anything that is not finite on either side is not finite in the difference, nor in its square.
    if not math.isfinite(square):
        finite = np.isfinite(_elements(one, yardstick)) & np.isfinite(_elements(other, yardstick))
        if not finite.all():
            return _partly_finite_block(ref, cand, finite, yardstick)
    alignment = alignment_of(one, other, difference, square)
    magnitudes = np.abs(_elements(one, yardstick), out=scratch(Slot.MAGNITUDE, ref.size, np.float64))
    distances = np.abs(_elements(difference, yardstick), out=difference[: ref.size])
    small = np.less(magnitudes, yardstick.small, out=scratch(Slot.SMALL, ref.size, np.bool_))
    relations = relations_of(magnitudes, distances, small)
    deviation = Deviation(
        count=ref.size,
        peak=peak_of(ref, cand, distances),
        mismatched=_mismatches(magnitudes, distances, small, relations, yardstick),
        relations=_with_flips(relations, one, other, yardstick),
        ulps=_ulps(ref, cand, yardstick),
    )
    return Metrics(kind=yardstick.kind, size=ref.size, alignment=alignment, deviation=deviation)


def _widened(block: Array, slot: Slot) -> Array:
    """The components of a floating-point or complex block in float64; the block itself where it is float64."""
    components = block.view(f"f{block.dtype.itemsize // 2}") if block.dtype.kind == "c" else block
    if components.dtype == np.float64:
        return components
    wide = scratch(slot, components.size, np.float64)
    np.copyto(wide, real_values(components))
    return wide


def _elements(components: Array, yardstick: Yardstick) -> Array:
    return components.view(np.complex128) if yardstick.kind == "complex" else components


def _partly_finite_block(ref: Array, cand: Array, finite: Array, yardstick: Yardstick) -> Metrics:
    broken = ~finite
    one = _elements(_widened(ref[broken], Slot.REF), yardstick)
    other = _elements(_widened(cand[broken], Slot.CAND), yardstick)
    agreeing = (np.isnan(one) & np.isnan(other)) | (one == other)
    conflicts = int(np.count_nonzero(~agreeing))
    at = np.flatnonzero(finite)
    if not at.size:
        return Metrics(kind=yardstick.kind, size=ref.size, nonfinite_mismatch=conflicts)
    rest = _measured_block(ref[at], cand[at], yardstick)
    peak = rest.deviation.peak and replace(rest.deviation.peak, index=int(at[rest.deviation.peak.index]))
    return replace(rest, size=ref.size, nonfinite_mismatch=conflicts, deviation=replace(rest.deviation, peak=peak))


def _mismatches(magnitudes: Array, distances: Array, small: Array, relations: Relations, yardstick: Yardstick) -> int:
    # Where no relation is above rtol, by more than it is rounded, only an element too small for one can be mismatched.
    few = 8 * (magnitudes.size - relations.large) <= magnitudes.size
    if few and relations.max_rel <= yardstick.rtol * (1 - 2.0**-50):
        at = np.flatnonzero(small)
        return mismatches(magnitudes[at], distances[at], yardstick)
    return mismatches(magnitudes, distances, yardstick)


def _with_flips(relations: Relations, ref: Array, cand: Array, yardstick: Yardstick) -> Relations:
    # An element that changes sign moves by at least its own magnitude.
    if yardstick.kind == "complex" or relations.max_rel < 1:
        return relations
    return replace(relations, flipped=sign_flips(ref, cand, yardstick.small))


def _ulps(ref: Array, cand: Array, yardstick: Yardstick) -> Ulps:
    if yardstick.kind == "complex":
        return Ulps()
    one, other = saturating_cast(ref, yardstick.dtype), saturating_cast(cand, yardstick.dtype)
    return ulps_of(one, other, yardstick.ulp_allowance)


def _exact_block(ref: Array, cand: Array, yardstick: Yardstick) -> Metrics:
    """The metrics of integers, booleans and key data: differences exact also where float64 is not."""
    one, other = encode(ref), encode(cand)
    common = np.uint8 if one.dtype == np.bool_ else np.result_type(one, other)
    one, other = one.astype(common), other.astype(common)
    distances = (np.maximum(one, other) - np.minimum(one, other)).view(f"u{one.dtype.itemsize}")
    difference = distances.astype(np.float64)
    np.negative(difference, where=other < one, out=difference)
    wide = one.astype(np.float64)
    deviation = Deviation(
        count=ref.size,
        peak=peak_of(ref, cand, distances),
        mismatched=mismatches(np.abs(wide), distances, yardstick),
    )
    alignment = alignment_of(wide, other.astype(np.float64), difference, inner(difference, difference))
    return Metrics(kind=yardstick.kind, size=ref.size, alignment=alignment, deviation=deviation)
