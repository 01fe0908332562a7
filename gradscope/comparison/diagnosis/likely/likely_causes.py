"""`with_likely_causes` finds simple relations that explain why a tensor differs from the reference.

It tests for the values of another tensor (two that were swapped), another order of axes, another order along the
first axis (the layers of a scan), a factor (a mean for a sum, a sign), running statistics that are divided by another
number or move by another share (`running_statistics`), a layer that computes in fewer digits
(`layers/computed_dtypes`), a few elements at which rounding decides (`judging/rounding/kinks`), a gradient that is
missing among those which another one is the sum of (`sum_differences`), and uses of a parameter that contribute to the
gradient of another one, or to none, and readers of an input that do in one program alone (`gradients`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import encode
from gradscope.comparison.diagnosis.growth import makes_error
from gradscope.comparison.diagnosis.likely.gradients.read_terms import ReadTerms
from gradscope.comparison.diagnosis.likely.gradients.shared_gradients import SharedGradients
from gradscope.comparison.diagnosis.likely.gradients.stacked_gradients import (
    differing_rows,
    other_rows,
    other_slices,
)
from gradscope.comparison.diagnosis.likely.gradients.use_terms import UseTerms
from gradscope.comparison.diagnosis.likely.layers.added_constants import AddedConstants
from gradscope.comparison.diagnosis.likely.layers.computed_dtypes import ComputedDtypes
from gradscope.comparison.diagnosis.likely.running_statistics import RunningStatistics
from gradscope.comparison.diagnosis.likely.stored_values import STORED, StoredValues
from gradscope.comparison.diagnosis.likely.sum_differences import gradient_in_words
from gradscope.comparison.diagnosis.refuting.apart.pair_values import norm_beside_fill
from gradscope.comparison.judging.rounding.kinks import KinkedShare, Kinks
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.layouts import agreeing_layouts
from gradscope.comparison.pairing.inference.equal_parts import reordered_blocks
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, AUX, INPUT_GRAD, PARAM_GRAD
from gradscope.naming.wording import counted

#: How the reason ends that a gradient differs where rounding decides.
AT_KINKS: Final = "where rounding decides on which side of a kink its value is"

#: How the words of a value end that is a multiple of its counterpart, wherever that is made.
MULTIPLE: Final = "times the reference's"

#: The largest tensor in bytes that is read a second time.
_READ_AGAIN_BYTES: Final = 64 << 20

#: Two tensors whose `1-cos` is below this are multiples of each other.
_PARALLEL: Final = 1e-8

#: The fewest elements that can show a factor: of two numbers that add up to zero, all are multiples of each other.
_FEWEST_ELEMENTS: Final = 4

#: A factor that differs from one by less than this counts as rounding.
_LEAST_FACTOR: Final = 1e-3


def with_likely_causes(
    dumps: Dumps,
    matches: Sequence[Match],
    rows: Mapping[str, ComparisonRow],
    statistics: RunningStatistics,
    kinks: Kinks,
) -> dict[str, ComparisonRow]:
    """Returns the rows of pairs that differ, with what explains it, and of the first that has other digits.

    A parameter that differs by what a program adds by itself is the same.

    Args:
        dumps: The dumps of the pairs.
        matches: The pairs.
        rows: Their rows, by the reference's keys.
        statistics: The running statistics of the dumps.
        kinks: Their kinks.
    """
    constants = AddedConstants(dumps, matches, rows).explained()
    rows = {**rows, **constants}
    stored, dtypes = StoredValues(dumps), ComputedDtypes(dumps)
    shared, uses, reads = SharedGradients(dumps, matches), UseTerms(dumps), ReadTerms(dumps)
    differing = (each for each in matches if rows[each.ref].status == "different")
    agreeing = {row.name for row in rows.values() if row.family == ACTIVATION and row.status == "same"}
    gradients_alone = not any(
        row.family in (ACTIVATION, ACTIVATION_GRAD) and row.status == "different" for row in rows.values()
    )
    by_owner = {dumps.ref.resolve(match.ref): match for match in matches}
    same = frozenset(each.ref for each in matches if rows[each.ref].status == "same")
    found: dict[str, str] = {}
    of_terms: dict[str, str] = {}
    for match in differing:
        row = rows[match.ref]
        likely = ""
        if row.family == ACTIVATION_GRAD and row.name in agreeing:
            likely = _at_kinks(row, kinks.share(dumps.ref.resolve(match.ref), by_owner))
        if row.family == ACTIVATION:
            likely = dtypes.words(match, row)
        if row.family == PARAM_GRAD:
            of_terms[match.ref] = other_slices(dumps, match) or other_rows(dumps, match, row)
        found[match.ref] = likely or _diagnosis(dumps, match, row, stored, statistics) or row.likely
        if not found[match.ref] and row.family == ACTIVATION_GRAD and row.name in agreeing and makes_error(row):
            of_terms[match.ref] = gradient_in_words(dumps, match, same)
            found[match.ref] = "" if of_terms[match.ref] else other_rows(dumps, match, row)
        if row.family == INPUT_GRAD and gradients_alone:
            of_terms[match.ref] = reads.words(match, row)
        if row.family == PARAM_GRAD and not of_terms[match.ref] and not found[match.ref]:
            words = shared.words(match, row) or uses.words(match, row)
            # Behind another difference, few rows may differ by what follows from that.
            of_terms[match.ref] = words or (differing_rows(dumps, match, row) if gradients_alone else "")
    found |= dtypes.first_of_others(matches, rows)
    return (
        constants
        | {key: replace(rows[key], likely=likely) for key, likely in found.items()}
        | {key: replace(rows[key], likely=likely, explained=True) for key, likely in of_terms.items() if likely}
    )


def _diagnosis(
    dumps: Dumps,
    match: Match,
    row: ComparisonRow,
    stored: StoredValues,
    statistics: RunningStatistics,
) -> str:
    """Returns a clause that explains the difference of a pair, such as `is 0.5 times the reference's`.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        row: Its row.
        stored: The stored values of the dumps.
        statistics: The running statistics of the dumps.

    Returns:
        A clause about the candidate's tensor; "" where no simple relation is found.
    """
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if match.recipe.plain and one.shape != other.shape:
        return "" if one.absent or other.absent else _other_shape(one.shape, other.shape)
    if row.family in STORED:
        found = stored.words(match, row.tolerance or 0.0) or (_other_order(dumps, match) if match.recipe.plain else "")
        if found:
            return found
    if row.family == AUX and (found := statistics.other_divisor(match) or statistics.other_share(match)):
        return found
    if row.family in (ACTIVATION, ACTIVATION_GRAD) and (found := _other_places(dumps, match, row)):
        return found
    return _multiple(row) if math.prod(dumps.ref.entry(match.ref).shape) >= _FEWEST_ELEMENTS else ""


def _other_shape(ref: Sequence[int], cand: Sequence[int]) -> str:
    """Returns how two shapes are related that no layout of the dumps explains."""
    if sorted(ref) == sorted(cand):
        return "has the reference's axes in another order, and its values do not show which (--map states it)"
    return "has as many elements as the reference's, in another shape" if math.prod(ref) == math.prod(cand) else ""


def _other_order(dumps: Dumps, match: Match) -> str:
    entry = dumps.ref.entry(match.ref)
    if entry.shape != dumps.cand.entry(match.cand).shape or len(entry.shape) < 2:
        return ""
    if not (dumps.ref.has_tensor(match.ref) and dumps.cand.has_tensor(match.cand)):
        return ""
    ref = dumps.ref.array(match.ref)
    if ref.nbytes > _READ_AGAIN_BYTES:
        return ""
    cand = dumps.cand.array(match.cand)
    agreeing = agreeing_layouts(ref, cand)
    if agreeing and agreeing[0].steps(cand.shape):
        return f"is transposed: its axes {list(agreeing[0].axes)} are the reference's"
    order = _order_of_slices(ref, cand)
    return f"is permuted: its slices are the reference's {order} along the first axis" if order else ""


def _at_kinks(row: ComparisonRow, share: KinkedShare) -> str:
    """Returns that the gradients of a value differ only where rounding decides; "" where they do not."""
    if row.tolerance is None or "rel_l2" not in row.metrics or not share.made:
        return ""
    if as_float(row.metrics["rel_l2"]) ** 2 - share.made**2 > row.tolerance**2:
        return ""
    return f"differs only in {counted(share.count, 'element')} of {share.size:,}, {AT_KINKS}"


def _other_places(dumps: Dumps, match: Match, row: ComparisonRow) -> str:
    """Returns along which axis a value is in reverse, as the outputs of a scan, or has its parts in another order.

    What is joined in another order has so, as the sines and cosines of positions.
    """
    ratio = as_float(row.metrics.get("norm_ratio", math.nan))
    known = dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))
    if not known or row.tolerance is None or not abs(ratio - 1) <= _LEAST_FACTOR:
        return ""
    ref, cand = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    if ref.nbytes > _READ_AGAIN_BYTES or ref.shape != cand.shape:
        return ""
    ref, cand = (each.astype(np.result_type(each, np.float64)) for each in (ref, cand))  # masks cannot be subtracted
    axes = (axis for axis, size in enumerate(ref.shape) if size > 1)
    limit = row.tolerance * norm_beside_fill(ref)  # what a mask writes may be in reverse as it is
    if not math.isfinite(limit):
        return ""
    found = next((axis for axis in axes if np.linalg.norm(np.flip(cand, axis) - ref) <= limit), None)
    if found is not None:
        return f"is the reference's in reverse along axis {found}"
    parts = next((each.blocks for each in reordered_blocks(ref, cand) if each.axes == tuple(range(ref.ndim))), None)
    if parts is None or parts.axis != parts.joined:
        return ""
    order = [parts.order.index(at) for at in range(len(parts.order))]
    return f"has the reference's {len(order)} parts along axis {parts.axis} in the order {order}"


def _order_of_slices(ref: Array, cand: Array) -> list[int]:
    """Returns the index in the reference of each slice of the candidate.

    Empty where a slice is not in the reference, or where all slices have the same index in both.
    """
    indices: dict[bytes, int] = {}
    for index, part in enumerate(ref):
        indices.setdefault(np.ascontiguousarray(encode(part)).tobytes(), index)
    order = [indices.get(np.ascontiguousarray(encode(part)).tobytes(), -1) for part in cand]
    return order if sorted(order) == list(range(len(order))) != order else []


def _multiple(row: ComparisonRow) -> str:
    if "1-cos" not in row.metrics or row.metrics.get("nonfinite_mismatch"):
        return ""
    apart, factor = as_float(row.metrics["1-cos"]), as_float(row.metrics["norm_ratio"])
    if apart > 1:
        apart, factor = 2 - apart, -factor
    if apart > _PARALLEL or not math.isfinite(factor) or factor == 0 or abs(factor - 1) < _LEAST_FACTOR:
        return ""
    return f"is {factor:.4g} {MULTIPLE}"
