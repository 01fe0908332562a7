"""`StoredValues` tells what the values of a parameter or of state are that differs from the reference's.

A port that loads the weight of another layer, or forgets to load one, has values that say so: those of another tensor
of the reference, in whatever layout the port keeps it, or one number in each element.

Statistics tell which tensors may be equal, since a norm is the same in each layout; only these are read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import cached_property
from heapq import nsmallest
from typing import Final, NamedTuple

import numpy as np

from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.layout.layouts import agreeing_layouts
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json
from gradscope.naming import PARAM, STATE, key_of, printable
from gradscope.naming.wording import brief

#: The families of stored values, which can have been assigned to the wrong name; all other families are computed.
STORED: Final = (PARAM, STATE)

#: The most tensors of one size and about one norm that are read.
_MOST_READ: Final = 16

#: The most tensors that are read for one comparison: of thousands that are nearly equal, all would be.
_MOST_READ_OF_ALL: Final = 512


class StoredValues:
    """StoredValues finds the reference's tensors that have the values of the candidate's.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        self._left = _MOST_READ_OF_ALL

    def words(self, match: Match, tolerance: float) -> str:
        """Returns a clause about what the candidate's tensor holds instead; "" where that is not known.

        Args:
            match: The pair of two stored tensors.
            tolerance: The largest relative error of two tensors with the same values.
        """
        stats, size = self._dumps.cand.entry(match.cand).stats, math.prod(self._dumps.ref.entry(match.ref).shape)
        if size < 2:
            return ""
        if len(match.recipe.keys) == 1 and (least := _only_number(stats)) is not None:
            return f"is {brief(least)} in each element"
        found = self._of_hash(match) or self._of_values(match, size, tolerance)
        return f"has the values of `{printable(found)}`" if found else ""

    def _of_hash(self, match: Match) -> str:
        digest = self._dumps.cand.entry(self._dumps.cand.resolve(match.cand)).stats.get("hash")
        return self._by_hash.get(digest, "") if match.recipe.plain and isinstance(digest, str) else ""

    def _of_values(self, match: Match, size: int, tolerance: float) -> str:
        """Returns the name of the first tensor of the reference that has the values of a pair's; "" for none."""
        moves = match.recipe.only_moves and len(match.recipe.keys) == 1
        whole = moves and math.prod(self._dumps.cand.entry(match.cand).shape) == size
        norm = _number(self._dumps.cand.entry(match.cand).stats, "l2") if whole else None
        value = None if whole else self._cand.made(match.recipe)
        if value is not None:
            norm = float(np.linalg.norm(value))
        own = self._dumps.ref.resolve(match.ref)
        for _, name, key in self._near(size, norm, tolerance)[: self._left]:
            self._left -= 1
            value = self._cand.made(match.recipe) if value is None else value
            tensor = self._ref.tensor(key) if key != own else None
            if value is None or tensor is None:
                continue
            for layout in agreeing_layouts(tensor, value)[:1]:
                if np.linalg.norm(layout.read(value) - tensor) <= tolerance * np.linalg.norm(tensor):
                    return name
        return ""

    def _near(self, size: int, norm: float | None, apart: float) -> list[_Normed]:
        """Returns the reference's tensors of a size whose norms are no further apart, those with the nearest first."""
        if not norm or not math.isfinite(norm):
            return []
        known = self._by_size.get(size, [])
        begin = bisect_left(known, norm * (1 - apart), key=lambda each: each.norm)
        end = bisect_right(known, norm * (1 + apart), key=lambda each: each.norm)
        return nsmallest(_MOST_READ, known[begin:end], key=lambda each: abs(each.norm - norm))

    @cached_property
    def _stored(self) -> tuple[Entry, ...]:
        entries = self._dumps.ref.manifest.entries
        return tuple(each for each in entries if each.family in STORED and math.prod(each.shape) > 1)

    @cached_property
    def _by_hash(self) -> dict[str, str]:
        # Of several with the same values, the first.
        stored = reversed(self._stored)
        return {digest: each.name for each in stored if isinstance(digest := each.stats.get("hash"), str)}

    @cached_property
    def _by_size(self) -> dict[int, list[_Normed]]:
        """The reference's stored tensors by their numbers of elements, in the order of their norms."""
        found: dict[int, list[_Normed]] = {}
        for each in self._stored:
            if (norm := _number(each.stats, "l2")) is not None:
                key = self._dumps.ref.resolve(key_of(each.family, each.name))
                found.setdefault(math.prod(each.shape), []).append(_Normed(norm, each.name, key))
        return {size: sorted(each) for size, each in found.items()}


class _Normed(NamedTuple):
    norm: float
    name: str
    key: str


def _only_number(stats: Mapping[str, Json]) -> float | None:
    """Returns the number that each element is, or None."""
    # The least and the greatest are those of the finite elements.
    if any(stats.get(column) for column in ("nan", "inf")):
        return None
    least = _number(stats, "min")
    return least if least == _number(stats, "max") else None


def _number(stats: Mapping[str, Json], column: str) -> float | None:
    """Returns a statistic that is a number, or None."""
    value = stats.get(column)
    return float(value) if isinstance(value, int | float) else None
