"""`diagnosis` finds simple relations that explain why a tensor differs from the reference.

It tests for the values of another tensor (two that were swapped), another order of axes, another order along the first
axis (the layers of a scan), a factor (a mean for a sum, a sign), and a running variance that is divided by another
number. That last one shows a difference that is within tolerance, too; no other diagnosis changes the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import encode
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.layouts import agreeing_layouts
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.values.by_values import are_of_one_name
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, AUX, PARAM, STATE, key_of, split_key

#: The families of stored values, which can have been assigned to the wrong name; all other families are computed.
_STORED: Final = (PARAM, STATE)

#: The largest tensor in bytes that is read a second time.
_READ_AGAIN_BYTES: Final = 64 << 20

#: Two tensors whose `1-cos` is below this are multiples of each other.
_PARALLEL: Final = 1e-8

#: The fewest elements that can show a factor: of two numbers that add up to zero, all are multiples of each other.
_FEWEST_ELEMENTS: Final = 4

#: The fewest channels that show another divisor of a variance: rounding could look like it in a few.
_FEWEST_CHANNELS: Final = 6

#: How many times the rounding of a type a difference is that shows anything.
_LEAST_ROUNDINGS: Final = 8

#: The relative error of what a difference shows beside rounding.
_NEARLY: Final = 0.05

#: A factor that differs from one by less than this counts as rounding.
_LEAST_FACTOR: Final = 1e-3


def diagnosis(dumps: Dumps, match: Match, row: ComparisonRow, names_by_hash: Mapping[str, str]) -> str:
    """Returns a clause that explains the difference of a pair, such as `is 0.5 times the reference's`.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        row: Its row.
        names_by_hash: The reference's names of tensors by their hashes.

    Returns:
        A clause about the candidate's tensor; "" where no simple relation is found.
    """
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if match.recipe.plain and one.shape != other.shape:
        return _other_shape(one.shape, other.shape)
    if row.family in _STORED and match.recipe.plain:
        found = _another_tensor(dumps, match, names_by_hash) or _other_order(dumps, match)
        if found:
            return found
    if row.family == AUX and (found := _other_divisor(dumps, match)):
        return found
    return _multiple(row) if math.prod(dumps.ref.entry(match.ref).shape) >= _FEWEST_ELEMENTS else ""


def with_divisors(
    dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]
) -> dict[str, ComparisonRow]:
    """Returns the rows of running variances that are within tolerance and divided by another number, as different.

    Args:
        dumps: The dumps of the pairs.
        matches: The pairs.
        rows: Their rows, by the reference's keys.
    """
    within = (each for each in matches if rows[each.ref].family == AUX and rows[each.ref].status == "same")
    found = ((each.ref, _other_divisor(dumps, each)) for each in within if rows[each.ref].needed)
    return {key: replace(rows[key], status="different", tolerance=None, why=why) for key, why in found if why}


def _before(source: DumpSource, key: str) -> Array | None:
    """Returns the parameter or state that an auxiliary output updates, by its name; None where there is none."""
    name = split_key(key)[1]
    entries = (each for each in source.manifest.entries if each.family in _STORED)
    found = (key_of(each.family, each.name) for each in entries if are_of_one_name(each.name, name))
    return next((source.array(each) for each in found if source.has_tensor(each)), None)


def _counts(source: DumpSource, channels: int) -> list[int]:
    """Returns how many values each of some channels may have, by the shapes of activations."""
    shapes = (each.shape for each in source.manifest.entries if each.family == ACTIVATION and channels in each.shape)
    return sorted({math.prod(shape) // channels for shape in shapes} - {0, 1})


def names_by_hash(dumps: Dumps) -> dict[str, str]:
    """Returns the reference's names of stored tensors by the hashes of their values."""
    entries = (entry for entry in dumps.ref.manifest.entries if entry.family in _STORED and math.prod(entry.shape) > 1)
    return {digest: entry.name for entry in entries if isinstance(digest := entry.stats.get("hash"), str)}


def _other_divisor(dumps: Dumps, match: Match) -> str:
    """Returns that one program divides a variance by the number of values, and the other by one less; "" if not.

    Both add a share of the variance of a batch to the same running variance, `a * old + b * variance`. The two results
    are then apart by a multiple of the variance, so that `new - k * (other - new)` is `a * old`, where `k` is one less
    than the number of values, or minus that number. How many values there may be, shapes say.
    """
    old = _before(dumps.ref, match.ref)
    if (
        old is None
        or not match.recipe.plain
        or not (dumps.ref.has_tensor(match.ref) and dumps.cand.has_tensor(match.cand))
    ):
        return ""
    arrays = (old, dumps.ref.array(match.ref), dumps.cand.array(match.cand))
    start, new, other = (np.ravel(each).astype(np.float64) for each in arrays)
    if not new.shape == other.shape == start.shape or new.size < _FEWEST_CHANNELS or min(new.min(), start.min()) < 0:
        return ""
    apart, rounding = other - new, machine_epsilon(dumps.ref.entry(match.ref).dtype) * np.linalg.norm(new)
    if np.linalg.norm(apart) <= _LEAST_ROUNDINGS * rounding or not np.any(start):
        return ""
    for count in _counts(dumps.ref, new.size):
        for factor, used, expected in ((count - 1, count - 1, count), (-count, count, count - 1)):
            kept = new - factor * apart
            share = float(start @ kept) / float(start @ start)
            if 0 < share < 1 and np.linalg.norm(kept - share * start) <= _NEARLY * np.linalg.norm(factor * apart):
                return f"divides the variance by {used}, and the reference by {expected}"
    return ""


def _other_shape(ref: Sequence[int], cand: Sequence[int]) -> str:
    """Returns how two shapes are related that no layout of the dumps explains."""
    if sorted(ref) == sorted(cand):
        return "has the reference's axes in another order, and its values do not show which (--map states it)"
    return "has as many elements as the reference's, in another shape" if math.prod(ref) == math.prod(cand) else ""


def _another_tensor(dumps: Dumps, match: Match, names: Mapping[str, str]) -> str:
    digest = dumps.cand.entry(dumps.cand.resolve(match.cand)).stats.get("hash")
    return f"has the values of {names[digest]}" if isinstance(digest, str) and digest in names else ""


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
    return f"is {factor:.4g} times the reference's"
