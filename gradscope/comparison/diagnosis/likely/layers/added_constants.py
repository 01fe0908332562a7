"""`AddedConstants` finds parameters that differ by a constant which one of the programs adds by itself.

The LSTM of Haiku adds 1 to its forget gate, where other programs have that in the bias; a norm may multiply by its
scale, or by 1 plus that. So the parameter of a right port is less by that number. That it is no other parameter, the
values say: those that are computed from it next agree in both programs, and the gradient says that the constant would
have changed them. A bias before a norm is not proved so, as the norm takes a constant out again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys
from gradscope.naming import ACTIVATION, PARAM, gradient_key, split_key

#: The numbers of equal blocks of which some alone may have the constant: all, and the gates of a cell.
_BLOCKS: Final = (1, 2, 3, 4)

#: The fewest elements that say that they differ by one constant.
_FEWEST: Final = 2

#: The least constant, for the largest of the values that are computed from the parameter: less is within tolerances.
_LEAST: Final = 1e-2

#: The least share of a gradient that is along the constant: a norm behind a bias leaves rounding there.
_ALONG: Final = 1e-3

#: The share of the constant above which a difference is that, and no rounding.
_HALF: Final = 0.5

#: How many times the rounding of their dtype two numbers are apart that are one.
_ROUNDINGS: Final = 4


class AddedConstants:
    """AddedConstants finds the parameters of a port that differ from the reference's by a constant.

    Args:
        dumps: The dumps.
        matches: Their pairs.
        rows: The rows of these, by the reference's keys.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]) -> None:
        self._dumps, self._matches, self._rows = dumps, matches, rows
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def explained(self) -> dict[str, ComparisonRow]:
        """Returns the rows of such parameters with what the constant is, as the same where one program adds that."""
        params = [each for each in self._matches if split_key(each.ref)[0] == PARAM]
        differing = [each for each in params if _is_over(self._rows[each.ref])]
        found = {each.ref: what for each in differing if (what := self._constant(each)) is not None}
        if not found:
            return {}
        readers = self._readers(found)
        params = {each.ref: each for each in differing}
        added = {
            key for key, apart in found.items() if self._agree(readers[key], abs(apart)) and self._acts(params[key])
        }
        as_same = partial(replace, status="same", tolerance=None, rule="", needed=None, why="")
        return {
            key: as_same(self._rows[key], likely=f"{_words(apart)}, which adds that itself")
            if key in added
            else replace(self._rows[key], likely=_words(apart))
            for key, apart in found.items()
            if key in added or not self._is_number(params[key])
        }

    def _constant(self, match: Match) -> float | None:
        """Returns by how much the candidate's parameter is greater, in all elements or in some of equal blocks."""
        one, other = self._both(match)
        if one is None or other is None or one.shape != other.shape or not one.ndim:
            return None
        epsilon = max(machine_epsilon(self._dumps.ref.entry(match.ref).dtype), machine_epsilon(self._dtype(match)))
        rounding = _ROUNDINGS * epsilon * np.maximum(np.abs(one), np.abs(other))
        apart, where = other - one, np.abs(other - one) > rounding
        if where.sum() < _FEWEST or not _are_blocks(where):
            return None
        constant = float(np.sort(apart[where])[where.sum() // 2])  # NumPy's median imports masked arrays
        is_one = (np.abs(apart - constant) <= rounding)[where].all()
        return constant if is_one else None

    def _is_number(self, match: Match) -> bool:
        """Returns whether the candidate has one number in each element, which says more."""
        _, other = self._both(match)
        return other is not None and float(np.ptp(other)) == 0.0

    def _acts(self, match: Match) -> bool:
        """Returns whether the constant by which a parameter differs would change the loss, by its gradient."""
        one, other = self._both(match)
        gradient = self._gradient(match)
        if gradient is None or one is None or other is None or gradient.shape != one.shape:
            return False
        along = gradient[np.abs(other - one) > _HALF * np.abs(other - one).max()]
        return abs(float(along.sum())) > _ALONG * float(np.linalg.norm(along)) * math.sqrt(along.size)

    def _both(self, match: Match) -> tuple[Array | None, Array | None]:
        return self._ref.tensor(match.ref), self._cand.made(match.recipe)

    def _dtype(self, match: Match) -> str:
        return self._dumps.cand.entry(match.cand).dtype

    def _gradient(self, match: Match) -> Array | None:
        """Returns the gradient of a parameter in the reference, or else in the candidate; None where there is none."""
        found = self._ref.tensor(gradient_key(match.ref))
        keys = tuple(map(gradient_key, match.recipe.keys))
        return self._cand.made(replace(match.recipe, keys=keys)) if found is None else found

    def _readers(self, keys: Mapping[str, float]) -> dict[str, list[Match]]:
        """Returns the pairs of values that either program computes next from parameters, by the reference's keys."""
        values = [each for each in self._matches if split_key(each.ref)[0] == ACTIVATION]
        found: dict[str, list[Match]] = {key: [] for key in keys}
        params = [each for each in self._matches if each.ref in keys]
        for source, of_ref in ((self._dumps.ref, True), (self._dumps.cand, False)):
            owned = {key: each for each in reversed(values) for key in _owners(source, each, of_ref=of_ref)}
            sought = {key: each.ref for each in params for key in _owners(source, each, of_ref=of_ref)}
            nearest = NearestKeys(forward_sources(source), {*owned, *sought})
            for key, match in owned.items():
                for param in {sought[each] for each in nearest.behind(key) if each in sought}:
                    found[param].append(match)
        return found

    def _agree(self, readers: Sequence[Match], constant: float) -> bool:
        """Returns whether all of some values agree, and the constant is not small beside them."""
        tensors = [self._ref.tensor(each.ref) for each in readers]
        largest = max((float(np.abs(each).max()) for each in tensors if each is not None), default=math.inf)
        agree = all(self._rows[each.ref].status == "same" for each in readers)
        return bool(readers) and agree and constant >= _LEAST * largest


def _is_over(row: ComparisonRow) -> bool:
    return row.status == "different" and row.judged_by_tolerance


def _owners(source: DumpSource, match: Match, *, of_ref: bool) -> list[str]:
    return [source.resolve(key) for key in ((match.ref,) if of_ref else match.recipe.keys)]


def _are_blocks(where: Array) -> bool:
    """Returns whether elements are some of a few equal blocks along the last axis, the same in each row."""
    rows = where.reshape(-1, where.shape[-1])
    fitting = (count for count in _BLOCKS if rows.shape[1] % count == 0 and rows.shape[1] // count >= _FEWEST)
    blocks = (rows[0].reshape(count, -1) for count in fitting)
    return bool((rows == rows[0]).all()) and any((each == each[:, :1]).all() for each in blocks)


def _words(apart: float) -> str:
    program = "the candidate" if apart < 0 else "the reference"
    return f"is less by {abs(apart):.4g} in {program}"
