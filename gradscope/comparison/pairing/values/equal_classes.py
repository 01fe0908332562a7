"""`equal_classes` finds the classes of tensors with equal values in two dumps, in time linear in their number.

Of all pairs of classes, only those are tried whose statistics are near: the norms are sorted, and the other statistics
of the classes around a norm are compared at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from gradscope.comparison.layout.recipes import RecipeStep
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.values.equality import Equality, Statistics, ValueClass, measurable
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json

#: The statistics that are compared, and the one of the reference that is the unit of each one's change.
_COLUMNS: Final = ("l2", "mean", "std", "min", "max", "rms")
_UNITS: Final = ("l2", "rms", "rms", "l2", "l2")

#: What rounding may add to a bound.
_SLACK: Final = 1 + 1e-6

#: The most classes that are compared one by one.
_FEW: Final = 8


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
    groups: defaultdict[tuple[int, str, str], list[ValueClass]] = defaultdict(list)
    for each in cands:
        family, dtype, shape, _ = each
        groups[math.prod(shape), family, dtype].append(each)
    by_size: defaultdict[int, list[_Group]] = defaultdict(list)
    for (size, _, _), classes in groups.items():
        by_size[size].append(_Group([cands[each] for each in classes], equality.cand_stats))
    for each, keys in refs.items():
        for group in by_size[math.prod(each[2])]:
            limit = equality.tolerance(keys[0], group.classes[0][0])
            if limit is None:
                continue
            for others in group.near(equality.ref_stats(keys[0]), limit):
                if (recipe := equality.recipe(keys[0], others[0])) is not None:
                    yield EqualClasses(refs=tuple(keys), cands=tuple(others), steps=recipe.steps)


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

    def near(self, ref: Mapping[str, Json], limit: float) -> Iterator[list[str]]:
        """Yields the classes whose statistics do not rule out that they are equal within a limit."""
        own = _numbers(ref)
        norms, order, table = self._sorted
        reaches = [abs(own[_COLUMNS.index(unit)]) * limit * _SLACK if limit else 0.0 for unit in _UNITS]
        start, stop = 0, len(order)
        if math.isfinite(own[0]):
            start, stop = bisect_left(norms, own[0] - reaches[0]), bisect_right(norms, own[0] + reaches[0])
        # A statistic that either lacks, or that is not finite, is NaN here and rules nothing out.
        if stop - start <= _FEW:  # which are compared in a tenth of the time that NumPy takes
            for place in range(start, stop):
                limits = zip(table[: len(_UNITS), place].tolist(), own, reaches, strict=False)
                if not any(abs(other - value) > reach for other, value, reach in limits):
                    yield self.classes[order[place]]
        else:
            with np.errstate(invalid="ignore"):
                apart = np.abs(table[: len(_UNITS), start:stop] - np.array(own[: len(_UNITS)])[:, None])
                near = ~(apart > np.array(reaches)[:, None]).any(axis=0)
            yield from (self.classes[order[start + place]] for place in np.flatnonzero(near))
        if math.isfinite(own[0]):  # classes without a norm are at the end
            yield from (self.classes[place] for place in order[max(len(norms), stop) :])

    @cached_property
    def _sorted(self) -> tuple[list[float], npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """The norms in order, the classes in that of their norms, those without one last, a row for each statistic."""
        table = np.array([_numbers(self.statistics(keys[0])) for keys in self.classes]).T
        order = np.argsort(table[0], kind="stable")
        return np.sort(table[0][~np.isnan(table[0])]).tolist(), order, np.ascontiguousarray(table[:, order])


def _numbers(statistics: Mapping[str, Json]) -> list[float]:
    """Returns the statistics that are compared; NaN for those that are missing or not finite."""
    found = [as_float(statistics[name]) if name in statistics else math.nan for name in _COLUMNS]
    return [value if math.isfinite(value) else math.nan for value in found]
