"""Bounds of `rel_l2` follow from the statistics of two tensors, for dumps that do not hold the elements.

Equal hashes prove equal bytes. The other statistics used here change by no more than the tensor does, so that their
change is a lower bound of `rel_l2` (with n elements, rms(x) = l2(x) / sqrt(n)):

    |l2(b) - l2(a)| <= l2(d)        |mean(b) - mean(a)| <= rms(d)        |std(b) - std(a)| <= rms(d)
    |max(b) - max(a)| <= max |d| <= l2(d), and likewise for min and the largest magnitude

A bound over the tolerance proves a difference. A bound below it proves nothing, and the row states that.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json

#: Counts that have to be equal: no tolerance covers a difference in them.
_KINDS: Final = ("nan", "posinf", "neginf", "inf")

#: The statistic of the reference that is the unit of each statistic's change.
_UNITS: Final = {"l2": "l2", "mean": "rms", "std": "rms", "min": "l2", "max": "l2", "amax": "l2"}

#: The statistics of integers and booleans, which have no norms.
_EXACT: Final = ("min", "max", "zeros")


#: What shows which elements a tensor has.
_ELEMENTS: Final = ("l1", "l2", "mean", "std", "min", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bound stores the least `rel_l2` that two tensors can have.

    Attributes:
        rel_l2: The bound.
        statistic: The statistic that shows it; "" where no statistic differs.
        norm_ratio: The ratio of their norms; None where they have none.
        most: The sum of their norms, which their difference is no longer than; None where not all elements are finite.
    """

    rel_l2: float
    statistic: str = ""
    norm_ratio: float | None = None
    most: float | None = None


def hashes_agree(ref: Entry, cand: Entry) -> bool | None:
    """Returns whether two tensors have the same bytes; None where one has no hash."""
    one, other = ref.stats.get("hash"), cand.stats.get("hash")
    if one is None or other is None:
        return None
    return one == other and ref.dtype == cand.dtype


def value_of(entry: Entry) -> Hashable:
    """Returns what tells the values of a floating-point tensor apart; None of a constant, or without a hash."""
    known, is_constant = entry.stats.get("hash"), entry.stats.get("min") == entry.stats.get("max")
    if known is None or is_constant or dtype_class(entry.dtype) != "float":
        return None
    return known, entry.dtype, entry.shape


def least_rel_l2(ref: Mapping[str, Json], cand: Mapping[str, Json]) -> Bound | None:
    """Returns the least `rel_l2` that two tensors of one shape can have, by their statistics.

    Args:
        ref: The reference's statistics by column name.
        cand: The candidate's statistics.

    Returns:
        The bound, inf where no tolerance would pass; None where the tensors have no statistic in common.
    """
    for name in _KINDS:
        if ref.get(name, 0) != cand.get(name, 0):
            return Bound(rel_l2=math.inf, statistic=name)
    if "l2" in ref and "l2" in cand:
        changes = {name: _relative_change(name, unit, ref, cand) for name, unit in _UNITS.items()}
        statistic, change = max(changes.items(), key=lambda each: each[1])
        one, other = as_float(ref["l2"]), as_float(cand["l2"])
        most = None if any(ref.get(name, 0) for name in _KINDS) else one + other
        shown = statistic if change else ""
        return Bound(rel_l2=change, statistic=shown, norm_ratio=_norm_ratio(one, other), most=most)
    shared = [name for name in _EXACT if name in ref and name in cand]
    if not shared:
        return None
    differing = next((name for name in shared if ref[name] != cand[name]), "")
    return Bound(rel_l2=math.inf if differing else 0.0, statistic=differing)


def statistics_agree(ref: Mapping[str, Json], cand: Mapping[str, Json], limit: float) -> bool:
    """Returns whether the statistics of two tensors show the same elements, in whatever order.

    All of the statistics used here are the same for every order of the elements, and the norms l1 and l2 tell tensors
    apart that have equal extremes. Integers and booleans, and tensors with few statistics, show too little.

    Args:
        ref: The reference's statistics by column name.
        cand: The candidate's statistics.
        limit: The largest relative change.
    """
    if any(name not in each for each in (ref, cand) for name in _ELEMENTS):
        return False
    bound = least_rel_l2(ref, cand)
    change = max(_relative_change("l1", "l1", ref, cand), math.inf if bound is None else bound.rel_l2)
    return change <= limit


def statistics_are_multiples(ref: Mapping[str, Json], cand: Mapping[str, Json], factor: float, limit: float) -> bool:
    """Returns whether the statistics of a tensor show that its elements are those of another one times a factor.

    Args:
        ref: The reference's statistics by column name.
        cand: The candidate's statistics.
        factor: The factor.
        limit: The largest relative change beside it.
    """
    if any(name not in ref for name in _ELEMENTS) or any(ref.get(name, 0) for name in _KINDS):
        return False
    scaled = {name: as_float(ref[name]) * factor for name in _ELEMENTS} | {"rms": as_float(ref.get("rms", 0)) * factor}
    if factor < 0:
        scaled |= {name: -scaled[name] for name in ("l1", "l2", "std", "rms")}
        scaled |= {"min": scaled["max"], "max": scaled["min"]}
    return statistics_agree(scaled, cand, limit)


def _relative_change(name: str, unit: str, ref: Mapping[str, Json], cand: Mapping[str, Json]) -> float:
    if name not in ref or name not in cand or unit not in ref or unit not in cand:
        return 0.0
    distance, scale = abs(as_float(cand[name]) - as_float(ref[name])), as_float(ref[unit])
    if scale == 0:
        return math.inf if distance else 0.0
    return distance / scale


def _norm_ratio(ref: float, cand: float) -> float:
    if ref == 0:
        return math.inf if cand else 1.0
    return cand / ref
