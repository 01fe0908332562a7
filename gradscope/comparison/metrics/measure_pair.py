"""`measure` computes every metric of two tensors from their elements, in one pass over blocks."""

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
from gradscope.comparison.metrics.block_pairs import BlockBuffer, Pair, same_bytes
from gradscope.comparison.metrics.elementwise import (
    ElementwiseErrors,
    RelativeErrors,
    Ulps,
    mismatches,
    peak_of,
    relative_errors_of,
    sign_flips,
    ulps_of,
)
from gradscope.comparison.metrics.fills import Fills
from gradscope.comparison.metrics.metrics import Metrics
from gradscope.comparison.metrics.rel_l2_and_cosine import alignment_of
from gradscope.comparison.precision import Scale, saturating_cast


def measure(pairs: Iterable[Pair], scale: Scale, fills: Fills | None = None) -> Metrics:
    """Returns the metrics of two tensors, or of two ranges of them.

    Args:
        pairs: The blocks of both tensors in C order.
        scale: The precision at which the elements are compared.
        fills: What masks write in both, which is no difference; None where they write nothing.
    """
    total = Metrics(kind=scale.kind)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        for one, other in pairs:
            bit_equal = total.bit_equal and same_bytes(one, other)
            block = _measured_block(one, other, scale) if fills is None else _filled_block(one, other, scale, fills)
            total += replace(block, bit_equal=bit_equal)
    return total


def _filled_block(ref: Array, cand: Array, scale: Scale, fills: Fills) -> Metrics:
    """Returns the metrics of the elements that no mask writes."""
    one, other = real_values(ref) == fills.ref, real_values(cand) == fills.cand
    rest = ~(one | other)
    metrics = _at_positions(ref, cand, np.flatnonzero(rest), scale)
    conflicts = metrics.nonfinite_mismatch + int(np.count_nonzero(one != other))
    return replace(metrics, nonfinite_mismatch=conflicts, masked=int(np.count_nonzero(one & other)))


def _measured_block(ref: Array, cand: Array, scale: Scale) -> Metrics:
    if scale.kind not in ("float", "complex"):
        return _exact_block(ref, cand, scale)
    one, other = _widened(ref, BlockBuffer.REF), _widened(cand, BlockBuffer.CAND)
    difference = np.subtract(other, one, out=scratch(BlockBuffer.DIFFERENCE, one.size, np.float64))
    square = inner(difference, difference)
    # A non-finite element of either tensor makes the difference and its square non-finite: one test covers a block.
    if not math.isfinite(square):
        finite = np.isfinite(_elements(one, scale)) & np.isfinite(_elements(other, scale))
        if not finite.all():
            return _partly_finite_block(ref, cand, finite, scale)
    alignment = alignment_of(one, other, difference, square)
    magnitudes = np.abs(_elements(one, scale), out=scratch(BlockBuffer.MAGNITUDE, ref.size, np.float64))
    distances = np.abs(_elements(difference, scale), out=difference[: ref.size])
    small = np.less(magnitudes, scale.small, out=scratch(BlockBuffer.SMALL, ref.size, np.bool_))
    relative = relative_errors_of(magnitudes, distances, small)
    elementwise = ElementwiseErrors(
        count=ref.size,
        peak=peak_of(ref, cand, distances),
        mismatched=_mismatches(magnitudes, distances, small, relative, scale),
        relative=_with_flips(relative, one, other, scale),
        ulps=_ulps(ref, cand, scale),
    )
    return Metrics(kind=scale.kind, size=ref.size, alignment=alignment, elementwise=elementwise)


def _widened(block: Array, slot: BlockBuffer) -> Array:
    """Returns the real components of a block as float64; the block itself where it is float64."""
    components = block.view(f"f{block.dtype.itemsize // 2}") if block.dtype.kind == "c" else block
    if components.dtype == np.float64:
        return components
    wide = scratch(slot, components.size, np.float64)
    np.copyto(wide, real_values(components))
    return wide


def _elements(components: Array, scale: Scale) -> Array:
    return components.view(np.complex128) if scale.kind == "complex" else components


def _partly_finite_block(ref: Array, cand: Array, finite: Array, scale: Scale) -> Metrics:
    broken = ~finite
    one = _elements(_widened(ref[broken], BlockBuffer.REF), scale)
    other = _elements(_widened(cand[broken], BlockBuffer.CAND), scale)
    agreeing = (np.isnan(one) & np.isnan(other)) | (one == other)
    conflicts = int(np.count_nonzero(~agreeing))
    return replace(_at_positions(ref, cand, np.flatnonzero(finite), scale), nonfinite_mismatch=conflicts)


def _at_positions(ref: Array, cand: Array, positions: Array, scale: Scale) -> Metrics:
    """Returns the metrics of some elements of a block, for the size and the positions of the whole."""
    if not positions.size:
        return Metrics(kind=scale.kind, size=ref.size)
    rest = _measured_block(ref[positions], cand[positions], scale)
    peak = rest.elementwise.peak and replace(rest.elementwise.peak, index=int(positions[rest.elementwise.peak.index]))
    return replace(rest, size=ref.size, elementwise=replace(rest.elementwise, peak=peak))


def _mismatches(magnitudes: Array, distances: Array, small: Array, relative: RelativeErrors, scale: Scale) -> int:
    # Where no relative error exceeds rtol, allowing for its rounding, only small elements can be mismatched.
    few = 8 * (magnitudes.size - relative.large) <= magnitudes.size
    if few and relative.max_rel <= scale.rtol * (1 - 2.0**-50):
        positions = np.flatnonzero(small)
        return mismatches(magnitudes[positions], distances[positions], scale)
    return mismatches(magnitudes, distances, scale)


def _with_flips(relative: RelativeErrors, ref: Array, cand: Array, scale: Scale) -> RelativeErrors:
    # An element that changes sign differs by at least its own magnitude, so its relative error is at least 1.
    if scale.kind == "complex" or relative.max_rel < 1:
        return relative
    return replace(relative, flipped=sign_flips(ref, cand, scale.small))


def _ulps(ref: Array, cand: Array, scale: Scale) -> Ulps:
    if scale.kind == "complex":
        return Ulps()
    one, other = saturating_cast(ref, scale.dtype), saturating_cast(cand, scale.dtype)
    return ulps_of(one, other, scale.ulp_allowance)


def _exact_block(ref: Array, cand: Array, scale: Scale) -> Metrics:
    """Returns the metrics of integers, booleans and key data, with exact differences of 64-bit integers."""
    one, other = encode(ref), encode(cand)
    common = np.uint8 if one.dtype == np.bool_ else np.result_type(one, other)
    one, other = one.astype(common), other.astype(common)
    distances = (np.maximum(one, other) - np.minimum(one, other)).view(f"u{one.dtype.itemsize}")
    difference = distances.astype(np.float64)
    np.negative(difference, where=other < one, out=difference)
    wide = one.astype(np.float64)
    elementwise = ElementwiseErrors(
        count=ref.size,
        peak=peak_of(ref, cand, distances),
        mismatched=mismatches(np.abs(wide), distances, scale),
    )
    alignment = alignment_of(wide, other.astype(np.float64), difference, inner(difference, difference))
    return Metrics(kind=scale.kind, size=ref.size, alignment=alignment, elementwise=elementwise)
