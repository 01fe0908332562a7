"""`SharedGradients` tells that one parameter of a program is several of the other one, whose gradients add up.

A port that loads an embedding and the layer behind it from one table, and keeps both, computes the same loss and the
same gradients of activations. It has the gradient of each use apart, and an optimizer moves them apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.clauses import quoted, some_of
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.layouts import agreeing_layouts
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import PARAM, PARAM_GRAD, key_of, split_key

#: The relative error up to which two parameters were loaded from one, in norms and in values.
_EQUAL: Final = 1e-6

#: The most parameters that are looked at for another one, those of the nearest norms.
_MOST_READ: Final = 16


class SharedGradients:
    """SharedGradients finds parameters that are one in only one of two programs.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match]) -> None:
        pairs = [
            (split_key(each.ref)[1], split_key(key)[1])
            for each in matches
            if split_key(each.ref)[0] == PARAM
            for key in each.recipe.keys
        ]
        self._ref = _Parameters(dumps.ref, dumps.cand, dict(pairs))
        self._cand = _Parameters(dumps.cand, dumps.ref, {cand: ref for ref, cand in pairs})

    def words(self, match: Match, row: ComparisonRow) -> str:
        """Returns a clause about the candidate's gradient, where others complete it or it is of several; "" elsewhere.

        Args:
            match: A pair of gradients of a parameter.
            row: Its row.
        """
        name, of_cand = (split_key(each)[1] for each in (match.ref, match.cand))
        if row.tolerance is None or len(match.recipe.keys) > 1:
            return ""
        alike = self._ref.alike(name), self._cand.alike(of_cand)
        if not any(alike):
            return ""
        value, ref = (self._ref.tensors.tensor(key) for key in (key_of(PARAM, name), match.ref))
        cand = self._cand.tensors.made(match.recipe)
        if value is None or ref is None or cand is None or not value.shape == ref.shape == cand.shape:
            return ""
        if more := _completing(value, (ref, cand), self._cand.tensors, alike[1], row.tolerance):
            names = _all_of([of_cand, *more])
            return f"is a term of the reference's: {names} are one parameter in the reference alone"
        if more := _completing(value, (cand, ref), self._ref.tensors, alike[0], row.tolerance):
            names = _all_of([name, *more])
            return f"is the sum of the reference's of {names}, which are one parameter in the candidate alone"
        return ""


class _Parameters:
    """`_Parameters` finds the parameters of a program that may be one with another in the other program.

    Args:
        source: The program.
        other: The other program.
        pairs: The names of the counterparts, by those in the program.
    """

    def __init__(self, source: DumpSource, other: DumpSource, pairs: Mapping[str, str]) -> None:
        self._source, self._other, self._pairs = source, other, pairs
        self.tensors = FloatTensors(source)

    def alike(self, name: str) -> list[str]:
        """Returns other parameters of the shape and norm of one that have no counterpart, or that of the same values.

        Args:
            name: The name of the parameter.
        """
        own = self._entries.get(name)
        norm = None if own is None else _norm(own)
        if own is None or norm is None:  # a dump may have gradients alone
            return []
        among = self._free.get(tuple(sorted(own.shape)), [])
        first = bisect_left(among, norm * (1 - _EQUAL), key=itemgetter(0))
        near = (other for its, other in islice(among, first, first + _MOST_READ) if its <= norm * (1 + _EQUAL))
        return [each for each in near if self._may_be_one(name, each)]

    def _may_be_one(self, name: str, other: str) -> bool:
        """Returns whether two parameters of the program, which are two, may be one in the other program."""
        one, its = (self._source.resolve(key_of(PARAM, each)) for each in (name, other))
        counterparts = {self._counterpart(each) for each in (name, other)} - {None}
        return one != its and len(counterparts) <= 1

    @cached_property
    def _entries(self) -> Mapping[str, Entry]:
        return {each.name: each for each in self._source.manifest.entries if each.family == PARAM}

    @cached_property
    def _free(self) -> Mapping[tuple[int, ...], list[tuple[float, str]]]:
        """The norms and names of the parameters whose counterpart is none, or that of others too; by their axes."""
        counts = Counter(self._counterpart(name) for name in self._entries)
        found: defaultdict[tuple[int, ...], list[tuple[float, str]]] = defaultdict(list)
        for name, entry in self._entries.items():
            counterpart, norm = self._counterpart(name), _norm(entry)
            if norm is not None and (counterpart is None or counts[counterpart] > 1):
                found[tuple(sorted(entry.shape))].append((norm, name))
        return {axes: sorted(each) for axes, each in found.items()}

    def _counterpart(self, name: str) -> str | None:
        """Returns the key of the tensor in the other program that is the counterpart of a parameter; None for none."""
        return self._other.resolve(key_of(PARAM, self._pairs[name])) if name in self._pairs else None


def _norm(entry: Entry) -> float | None:
    norm = entry.stats.get("l2")
    return norm if isinstance(norm, float) else None


def _completing(
    value: Array, sums: tuple[Array, Array], tensors: FloatTensors, names: Sequence[str], tolerance: float
) -> list[str]:
    """Returns the parameters of the value of another one with the gradients of which its own is a gradient; or none.

    Args:
        value: The parameter.
        sums: The gradient that may be the sum, and that of the parameter in the other program.
        tensors: The tensors of that program.
        names: Parameters of it.
        tolerance: The relative error of the gradient.
    """
    found: list[str] = []
    whole, total = sums[0], sums[1].copy()
    for name in names:
        its, gradient = (tensors.tensor(key_of(family, name)) for family in (PARAM, PARAM_GRAD))
        if its is None or gradient is None or its.shape != gradient.shape:
            continue
        layout = next(iter(agreeing_layouts(value, its)), None)
        if layout is None:
            continue
        # A layout orders the elements; axes that are one in the other program are still apart.
        read, more = (layout.read(each).reshape(value.shape) for each in (its, gradient))
        if np.linalg.norm(read - value) <= _EQUAL * np.linalg.norm(value):
            found.append(name)
            total += more
    return found if np.linalg.norm(whole - total) <= tolerance * np.linalg.norm(whole) else []


def _all_of(names: Sequence[str]) -> str:
    return " and ".join(map(quoted, names)) if len(names) == 2 else some_of(names)
