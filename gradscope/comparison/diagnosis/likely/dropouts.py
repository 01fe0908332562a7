"""`dropout_in_words` tells that one value of a pair is the other behind a dropout, or with one before a sum.

A dropout sets some elements to zero, or all of some examples where paths are dropped, and multiplies the others by one
number, so that the mean stays. Which elements those are does not depend on their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import printable, split_key
from gradscope.naming.wording import brief, percent

#: The relative error up to which elements are zero, or a multiple.
_LEFT: Final = 1e-3

#: How the clause about the candidate's value begins.
_WITH: Final = "is the reference's with a dropout"
_WITHOUT: Final = "is the reference's without a dropout"
_ANOTHER: Final = "is zero in other elements than the reference's"
OF_DROPOUTS: Final = (_WITH, _WITHOUT, _ANOTHER)

#: The factors between which that of a dropout is.
_FACTORS: Final = (1.01, 100.0)

#: The fewest elements that each of two masks drops of what the other keeps.
_FEWEST_DROPPED: Final = 4

#: How many deviations the share of zeros may be from that which the factor says, as elements are drawn at random.
_DEVIATIONS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout:
    """Dropout stores what is dropped.

    Attributes:
        share: The share of the elements that are zero.
        factor: What the others are multiplied by.
        of_ref: Whether the reference has the dropout, and not the candidate.
    """

    share: float
    factor: float
    of_ref: bool

    def words(self, added_to: str = "") -> str:
        """Returns a clause about the candidate's value.

        Args:
            added_to: The value that the dropped one is added to, in words; "" where it is not added to any.
        """
        what = f" of what is added to {added_to}" if added_to else ""
        how = f"which sets {percent(self.share)} of the elements to 0 and multiplies the others by {brief(self.factor)}"
        return f"{_WITHOUT if self.of_ref else _WITH}{what}, {how}"


def dropout_in_words(dumps: Dumps, value: Match, around: Iterable[Match]) -> str:
    """Returns a clause about the dropout that one value of a pair is behind; "" where there is none.

    Args:
        dumps: The dumps of the pairs.
        value: The pair of the value.
        around: The pairs of what it is computed from, to one of which what is dropped may be added.
    """
    ref, cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def both(match: Match) -> tuple[Array, Array] | None:
        one, other = ref.tensor(match.ref), cand.made(match.recipe)
        return None if one is None or other is None or one.shape != other.shape else (one, other)

    values = both(value)
    if values is None or not values[0].ndim:
        return ""
    if words := _in_words(*values):
        return words
    for match in around:
        known = both(match)
        if known is not None and known[0].shape == values[0].shape:
            added = [whole - part for whole, part in zip(values, known, strict=True)]
            if words := _in_words(*added, added_to=f"`{printable(split_key(match.ref)[1])}`"):
                return words
    return ""


def _in_words(ref: Array, cand: Array, added_to: str = "") -> str:
    if (found := dropout_between(ref, cand)) is not None:
        return found.words(added_to)
    what = f" in what is added to {added_to}" if added_to else ""
    share = share_of_other_mask(ref, cand)
    drawn = "as both draw at random which {} of them a dropout sets to 0"
    return "" if share is None else f"{_ANOTHER}{what}, {drawn.format(percent(share))}"


def dropout_between(ref: Array, cand: Array) -> Dropout | None:
    """Returns the dropout that one value is behind and the other is not; None where there is none.

    Args:
        ref: The value of the reference, `[examples, ...]`.
        cand: That of the candidate, of the same shape.
    """
    for of_ref, whole, dropped in ((False, ref, cand), (True, cand, ref)):
        sizes = np.abs(whole)
        large = sizes >= np.median(sizes[sizes > 0]) if np.any(sizes) else np.zeros(whole.shape, bool)
        ratios = dropped[large] / whole[large]
        factor = float(np.median(ratios[ratios > 1])) if np.any(ratios > 1) else 0.0
        kept = np.abs(dropped - factor * whole) < np.abs(dropped)
        left = np.linalg.norm(dropped - np.where(kept, factor * whole, 0.0))
        if not _FACTORS[0] < factor < _FACTORS[1] or left > _LEFT * np.linalg.norm(dropped):
            continue
        share = float(np.mean(~kept[sizes > 0]))
        if _is_random(whole[large], kept[large]) and _is_expected(share, factor, _draws(kept, large)):
            return Dropout(share=share, factor=factor, of_ref=of_ref)
    return None


def share_of_other_mask(ref: Array, cand: Array) -> float | None:
    """Returns the share that two dropouts of one value drop, each by a mask of its own; None where they are none.

    What both keep is the same, and of what one keeps the other drops the share that it drops of all: what is zero
    before, as of one-hot vectors or behind a rectifier, would be zero in both.

    Args:
        ref: The value of the reference, `[examples, ...]`.
        cand: That of the candidate, of the same shape.
    """
    kept = ref != 0, cand != 0
    both = kept[0] & kept[1]
    numbers = [int(np.count_nonzero(each)) for each in kept]
    left = np.linalg.norm(np.where(both, ref - cand, 0.0))
    if not both.any() or left > _LEFT * np.linalg.norm(ref[both]):
        return None
    shares = [1 - np.count_nonzero(both) / number for number in numbers]
    share, draws = sum(shares) / 2, _draws(kept[0], kept[0] | kept[1])
    deviation = math.sqrt(share * (1 - share) / draws)
    everywhere = [1 - float(np.mean(each)) for each in kept]
    alike = all(abs(each - share) <= _DEVIATIONS * deviation for each in (*shares, *everywhere))
    return share if alike and min(shares) * draws >= _FEWEST_DROPPED else None


def _is_random(values: Array, kept: Array) -> bool:
    """Returns whether it is no matter of their values which elements are kept, as it is behind a rectifier."""
    if kept.all() or not kept.any():
        return False
    here, there = values[kept], values[~kept]
    return bool(here.min() < there.max() and there.min() < here.max())


def _is_expected(share: float, factor: float, draws: int) -> bool:
    expected = 1 - 1 / factor
    return abs(share - expected) <= _DEVIATIONS * math.sqrt(expected * (1 - expected) / draws)


def _draws(kept: Array, large: Array) -> int:
    """Returns how many elements are drawn by themselves: one for each example where all of it is dropped or none."""
    shares = [float(np.mean(own[among])) for own, among in zip(kept, large, strict=True) if among.any()]
    return len(shares) if {*shares} <= {0.0, 1.0} else int(np.count_nonzero(large))
