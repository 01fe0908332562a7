"""`equal_classes` finds the classes of tensors with equal values in two dumps, in time linear in their number.

Of all pairs of classes, only those are tried whose statistics are near: the norms are sorted, and the other statistics
of the classes around a norm are compared at once. Where very many are near, as of scales of layers that have hardly
left 1, the nearest ones are tried. A parameter is copied and not computed: where the other program has its very bytes,
it has no counterpart among those that are merely near.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from gradscope.comparison.layout.recipe_steps import RecipeStep
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.values.equality import Equality, Statistics, ValueClass, is_constant, measurable
from gradscope.dump.manifest.entries.packed_statistics import numbers_of
from gradscope.dump.record import Json
from gradscope.naming import INPUT, PARAM, STATE, split_key

#: The statistics that are compared, and the one of the reference that is the unit of each one's change.
_COLUMNS: Final = ("l2", "mean", "std", "min", "max", "rms")
_UNITS: Final = ("l2", "rms", "rms", "l2", "l2")

#: What rounding may add to a bound.
_SLACK: Final = 1 + 1e-6

_UNIT_COLUMNS: Final = [_COLUMNS.index(unit) for unit in _UNITS]

#: The most classes of near norms, or without one, that are looked at for one: a file may state one norm, or none, for
#: all its tensors.
_MOST_NEAR: Final = 1024
_MOST_TRIED: Final = 1 << 15  # pairs of classes that are compared at once
#: The most classes that are all read for one, and how many are where more are near.
_ALL_READ: Final = 64
_NEAREST: Final = 16

#: The families whose values a program is given.
_GIVEN: Final = (PARAM, STATE, INPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualClasses:
    """EqualClasses has the keys of the reference and of the candidate that have one value.

    Attributes:
        refs: Keys of the reference, in its order.
        cands: Keys of the candidate, in its order.
        steps: The recipe's steps that make a tensor of the reference of one of the candidate.
    """

    refs: tuple[str, ...]
    cands: tuple[str, ...]
    steps: tuple[RecipeStep, ...]


def equal_classes(dumps: Dumps, unmatched: Pairing, equality: Equality) -> Iterator[EqualClasses]:
    """Yields the classes of equal values among unmatched tensors; a class may be equal to several."""
    refs = _by_class(measurable(dumps.ref, unmatched.only_ref), equality.ref_class)
    cands = _by_class(measurable(dumps.cand, unmatched.only_cand), equality.cand_class)
    for each in _copied(refs, cands, equality):
        yield EqualClasses(refs=tuple(refs.pop(each)), cands=tuple(cands.pop(each)), steps=())
    groups: defaultdict[tuple[int, str, str], list[ValueClass]] = defaultdict(list)
    for each in cands:
        family, dtype, shape, _ = each
        groups[math.prod(shape), family, dtype].append(each)
    by_size: defaultdict[int, list[_Group]] = defaultdict(list)
    for (size, _, _), classes in groups.items():
        by_size[size].append(_Group([cands[each] for each in classes], equality.cand_stats))
    tested: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    limits: dict[tuple[str, str, int], float | None] = {}
    tried: list[tuple[list[str], _Group]] = []
    for (family, dtype, shape, _), keys in refs.items():
        for group in by_size[math.prod(shape)]:
            # A tolerance is that of families and dtypes, of which a group has one.
            kind = (family, dtype, id(group))
            if kind not in limits:
                limits[kind] = equality.tolerance(keys[0], group.classes[0][0])
            if (limit := limits[kind]) is not None:
                tested[id(group)].append((keys[0], limit))
                tried.append((keys, group))
    near = {id(group): group.near([(equality.ref_stats(key), limit) for key, limit in tested[id(group)]])
            for groups in by_size.values() for group in groups}  # fmt: skip
    for keys, group in tried:
        for others in next(near[id(group)]):
            if (recipe := equality.recipe(keys[0], others[0])) is not None:
                yield EqualClasses(refs=tuple(keys), cands=tuple(others), steps=recipe.steps)


def _copied(
    refs: Mapping[ValueClass, list[str]], cands: Mapping[ValueClass, list[str]], equality: Equality
) -> list[ValueClass]:
    """Returns the classes of given tensors, but for constants, that both programs have to the byte."""
    given = (each for each, keys in refs.items() if each in cands and split_key(keys[0])[0] in _GIVEN)
    return [each for each in given if not is_constant(equality.ref_stats(refs[each][0]))]


def _by_class(keys: Iterable[str], class_of: Callable[[str], ValueClass]) -> dict[ValueClass, list[str]]:
    found: defaultdict[ValueClass, list[str]] = defaultdict(list)
    for key in keys:
        found[class_of(key)].append(key)
    return found


@dataclass
class _Group:
    """_Group has the classes of the candidate of one family, dtype and size."""

    classes: Sequence[list[str]]
    statistics: Statistics

    def near(self, refs: Sequence[tuple[Mapping[str, Json], float]]) -> Iterator[list[list[str]]]:
        """Yields, for each of some statistics and limits, the classes that are not known to differ by more."""
        norms, order, table = self._sorted
        own, limits = _numbers([ref for ref, _ in refs]).T, np.array([limit for _, limit in refs])[:, None]
        reaches = np.where(limits == 0, 0.0, np.abs(own[:, _UNIT_COLUMNS]) * limits * _SLACK)
        starts, stops = _around(norms, own[:, 0], reaches[:, 0])
        unknown = np.isnan(own[:, 0])
        ranks = np.argsort(np.argsort(own[:, 0], kind="stable")) * len(norms) // len(refs)
        starts[unknown], stops[unknown] = 0, len(order)
        # Of more, those at the same place in the order of the norms: where all are near, it says more than a distance.
        starts = np.maximum(starts, np.minimum(stops, ranks + _MOST_NEAR // 2) - _MOST_NEAR)
        stops = np.minimum(stops, starts + _MOST_NEAR)
        ends = np.cumsum(stops - starts)
        without_norm = [self.classes[place] for place in order[len(norms) :][:_MOST_NEAR].tolist()]
        first = 0
        while first < len(refs):
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + _MOST_TRIED, "right")))
            # A row for each pair of a class of the reference and one of the candidate whose norms are near.
            rows = np.repeat(np.arange(first, last), (stops - starts)[first:last])
            places = np.arange(len(rows)) + (stops - ends)[rows] + before
            changes = _changes(table[: len(_UNITS), places], own[rows, : len(_UNITS)].T, reaches[rows].T)
            close = changes <= 1
            rows, places, changes = rows[close], places[close], changes[close]
            bounds = np.searchsorted(rows, np.arange(first, last + 1)).tolist()
            for row, (start, stop) in zip(range(first, last), pairwise(bounds), strict=True):
                near = places[start:stop]
                if len(near) > _ALL_READ:
                    near = near[_nearest(changes[start:stop], np.abs(near - ranks[row]))]
                classes = [self.classes[place] for place in order[near].tolist()]
                yield classes if unknown[row] else [*classes, *without_norm]
            first = last

    @cached_property
    def _sorted(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """The norms in order, the classes in that of their norms, those without one last, a row for each statistic."""
        table = _numbers([self.statistics(keys[0]) for keys in self.classes])
        order = np.argsort(table[0], kind="stable")
        return np.sort(table[0][~np.isnan(table[0])]), order, np.ascontiguousarray(table[:, order])


def _around(
    norms: npt.NDArray[np.float64], own: npt.NDArray[np.float64], reaches: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Returns between which places of the sorted norms those are that differ from others by no more than these may."""
    with np.errstate(over="ignore"):
        return np.searchsorted(norms, own - reaches, "left"), np.searchsorted(norms, own + reaches, "right")


def _changes(
    others: npt.NDArray[np.float64], own: npt.NDArray[np.float64], reaches: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Returns for each column the largest difference of a statistic, in units of what it may differ by."""
    # A statistic that either lacks, or that is not finite, is NaN here and rules nothing out.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        differences = np.abs(others - own)
        return np.fmax.reduce(np.where(differences > 0, differences / reaches, 0.0), axis=0, initial=0.0)


def _nearest(*distances: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Returns the places that are nearest by any of several distances, in order."""
    return np.unique([np.argsort(each, kind="stable")[: _NEAREST // len(distances)] for each in distances])


def _numbers(statistics: Sequence[Mapping[str, Json]]) -> npt.NDArray[np.float64]:
    """Returns a row for each statistic that is compared; NaN for those that are missing or not finite."""
    found = np.array([numbers_of(statistics, name) for name in _COLUMNS], np.float64)  # None becomes NaN
    return np.where(np.isfinite(found), found, np.nan)
