"""`ScaledGroups` tells whether two values differ by one number for each group, as norms of the same do.

A norm divides each group of what it reads, less the mean, by one number, in which its epsilon is. So two norms of the
same have the same directions, whatever their epsilons, where their biases are subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import PARAM, key_of, split_key

#: How many groups are looked at, and the fewest values of a group that have a direction.
_MOST_GROUPS: Final = 256
_FEWEST: Final = 3


class ScaledGroups:
    """ScaledGroups knows which values differ so.

    Args:
        dumps: The dumps.
        rows: The rows of the pairs, by the reference's keys.
    """

    def __init__(self, dumps: Dumps, rows: Mapping[str, ComparisonRow]) -> None:
        self._ref, self._cand, self._rows = FloatTensors(dumps.ref), FloatTensors(dumps.cand), rows
        self._layers = dumps.ref.manifest.layers

    def are_made_of(self, match: Match) -> bool:
        """Returns whether both values of a pair have the same directions, and are made by a norm for all that is seen.

        Args:
            match: The pair.
        """
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        if one is None or other is None or one.ndim < 2 or one.shape != other.shape:
            return False
        tolerance = self._rows[match.ref].tolerance or 0.0
        return any(
            _are_parallel(_groups(one, axis) - bias, _groups(other, axis) - bias, tolerance)
            for axis in dict.fromkeys((one.ndim - 1, 1))
            if one.shape[axis] >= _FEWEST
            for bias in self._biases(match, one.shape[axis])
        )

    def _biases(self, match: Match, size: int) -> Iterator[Array | float]:
        """Yields what may be added to each group of a value: nothing, or a vector of its layer's parameters."""
        yield 0.0
        name = split_key(match.ref)[1]
        names = dict.fromkeys(each for layer in self._layers if name in layer.outputs for each in layer.params)
        vectors = (self._ref.tensor(key_of(PARAM, each)) for each in names)
        yield from (each.reshape(-1) for each in vectors if each is not None and each.size == size)


def _groups(value: Array, axis: int) -> Array:
    """Returns some groups of a value along an axis, `[groups, elements]`."""
    groups = np.moveaxis(value, axis, -1).reshape(-1, value.shape[axis])
    return groups[:: -(-len(groups) // _MOST_GROUPS)]


def _are_parallel(one: Array, other: Array, tolerance: float) -> bool:
    """Returns whether each group of a value is a positive multiple of that of another."""
    products, squares = (one * other).sum(1), np.square(one).sum(1)
    along = np.divide(products, squares, out=np.zeros_like(products), where=squares > 0)[:, None] * one
    return bool((products >= 0).all() and np.linalg.norm(other - along) <= tolerance * np.linalg.norm(other))
