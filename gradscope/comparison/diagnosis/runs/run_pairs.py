"""`pairs_by_values` pairs the tensors of two runs whose programs call their parameters otherwise.

At the first step that both recorded, two programs that start alike have the same parameters, in whatever order of axes:
their norms, means, spreads and largest magnitudes are the same. A layer is that whose parameters are; what equal
constants are, such as biases that are all zero, is known from the layer. Names decide where the parameters of both
programs have the same ones, unless most of those have other values then, and have them under other names.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np

from gradscope import naming
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow

#: The families of what a program starts from.
_STORED: Final = (naming.PARAM, naming.STATE)

#: The families of values of which each program has those that it computes and reads.
_READ: Final = (naming.INPUT, naming.ACTIVATION, naming.AUX)

_Statistics: TypeAlias = Mapping[str, float | int]


def pairs_by_values(ref: History, cand: History) -> dict[int, int]:
    """Returns the numbers of the candidate's tensors by those of the reference's; none where names tell.

    Args:
        ref: The reference.
        cand: The candidate.

    Raises:
        DumpError: One of the histories is damaged.
    """
    common = np.intersect1d(ref.step_numbers(), cand.step_numbers())
    sides = [{row.key: number for number, row in each.tensors.items() if row.family in _STORED} for each in (ref, cand)]
    if not len(common) or not all(sides):
        return {}
    step = int(common[0])
    one, other = _Side(ref.tensors, ref.stats_at(step)), _Side(cand.tensors, cand.stats_at(step))
    if not _names_mislead(one, other, *sides):
        return {}
    pairs = _Pairs(one, other)
    pairs.add_equal(_STORED)
    if not pairs.found:
        return {}
    pairs.add_remaining()
    pairs.add_named([naming.INPUT])
    pairs.add_layers()
    pairs.add_equal(_READ)
    pairs.add_of_same_values()
    return pairs.found


@dataclass(frozen=True)
class _Side:
    """_Side has the tensors of a run by number, and their statistics at the first common step."""

    tensors: Mapping[int, TensorRow]
    stats: Mapping[int, _Statistics]

    def known(self, number: int) -> _Statistics:
        return self.stats.get(number, {})

    def size(self, number: int) -> int:
        return math.prod(self.tensors[number].shape or ())

    def is_constant(self, number: int) -> bool:
        stats = self.known(number)
        return stats.get("std", 0.0) <= 1e-6 * stats.get("amax", 0.0)


def _names_mislead(one: _Side, other: _Side, ref: Mapping[str, int], cand: Mapping[str, int]) -> bool:
    """Returns whether names do not tell which parameters are the same ones."""
    shared = [(ref[key], cand[key]) for key in ref.keys() & cand.keys()]
    if len(shared) < min(len(ref), len(cand)):
        return True
    wrong = [pair for pair in shared if not one.is_constant(pair[0]) and not _agree(one, other, *pair)]
    if 2 * len(wrong) <= sum(not one.is_constant(number) for number, _ in shared):
        return False
    pairs = _Pairs(one, other)
    pairs.add_equal(_STORED)
    return 2 * sum(number in pairs.found for number, _ in wrong) > len(wrong)


def _agree(one: _Side, other: _Side, number: int, counterpart: int) -> bool:
    """Returns whether two tensors have as many elements, and the same statistics."""
    row, bound = one.tensors[number], least_rel_l2(one.known(number), other.known(counterpart))
    dtype = row.dtype or "float32"
    limit = default_tolerance(row.family, dtype, other.tensors[counterpart].dtype or dtype)
    return one.size(number) == other.size(counterpart) and bound is not None and bound.rel_l2 <= limit


@dataclass
class _Pairs:
    """_Pairs gathers the pairs of two runs."""

    one: _Side
    other: _Side
    found: dict[int, int] = field(default_factory=dict[int, int])

    def add_equal(self, families: Iterable[str]) -> None:
        """Adds what has the same statistics as one tensor of the other run alone, and is no constant."""
        for family in families:
            ref = [each for each in self._free(self.one, self.found, family) if not self.one.is_constant(each)]
            used = self.found.values()
            cand = [each for each in self._free(self.other, used, family) if not self.other.is_constant(each)]
            twins: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
            for number, others in _near(self.one, self.other, ref, cand):
                twins[others].append(number)
            uses = Counter(other for others, numbers in twins.items() for other in others for _ in numbers)
            # Of several equal ones, as experts that start alike, those at the same place in the order of the step.
            for others, numbers in twins.items():
                if len(numbers) == len(others) and all(uses[each] == len(numbers) for each in others):
                    self.found |= dict(zip(numbers, others, strict=True))

    def add_remaining(self) -> None:
        """Adds what the same layers use of one size, constants of one value, and then the others in their order."""
        layers = self._layers()

        def of_layer(side: _Side, name: Callable[[TensorRow], str | None]) -> Callable[[int], object]:
            return lambda number: (side.tensors[number].family, name(side.tensors[number]), *_value(side, number))

        kinds = [
            (of_layer(self.one, lambda row: layers.get(row.layer or "")), of_layer(self.other, lambda row: row.layer)),
            (of_layer(self.one, lambda _: ""), of_layer(self.other, lambda _: "")),
        ]
        for of_ref, of_cand in kinds:
            ref, cand = defaultdict[object, list[int]](list), defaultdict[object, list[int]](list)
            for family in _STORED:
                for number in self._free(self.one, self.found, family):
                    ref[of_ref(number)].append(number)
                for number in self._free(self.other, self.found.values(), family):
                    cand[of_cand(number)].append(number)
            for kind, numbers in ref.items():
                if len(numbers) == len(cand[kind]):
                    self.found |= dict(zip(numbers, cand[kind], strict=True))

    def add_named(self, families: Iterable[str]) -> None:
        """Adds what has the same key in both runs."""
        keys = {row.key: number for number, row in self.other.tensors.items()}
        for family in families:
            for number in self._free(self.one, self.found, family):
                counterpart = keys.get(self.one.tensors[number].key)
                if counterpart is not None and self.one.size(number) == self.other.size(counterpart):
                    self.found[number] = counterpart

    def add_layers(self) -> None:
        """Adds what the layers of the same parameters make."""
        keys, layers = {row.key: number for number, row in self.other.tensors.items()}, self._layers()
        for number, row in self.one.tensors.items():
            if row.family != naming.ACTIVATION or row.layer not in layers or not row.name.startswith(row.layer):
                continue
            name = layers[row.layer] + row.name.removeprefix(row.layer)
            counterpart = keys.get(naming.key_of(naming.ACTIVATION, name))
            if counterpart is not None and self.one.size(number) == self.other.size(counterpart):
                self.found[number] = counterpart

    def add_of_same_values(self) -> None:
        """Adds gradients, slots, updates and averages of the values that are paired."""
        keys = {row.key: number for number, row in self.other.tensors.items()}
        names = {
            (self.one.tensors[number].family, self.one.tensors[number].name): self.other.tensors[counterpart].name
            for number, counterpart in self.found.items()
        }
        for number, row in self.one.tensors.items():
            name = names.get((naming.subject_family(row.family) or naming.PARAM, row.name))
            counterpart = None if name is None else keys.get(naming.key_of(row.family, name))
            if number not in self.found and counterpart is not None:
                self.found[number] = counterpart

    def _layers(self) -> dict[str, str]:
        """Returns the candidate's layers by those of the reference that most of their parameters are paired with."""
        votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for number, counterpart in self.found.items():
            row, other = self.one.tensors[number], self.other.tensors[counterpart]
            if row.family in _STORED and row.layer is not None and other.layer is not None:
                votes[row.layer][other.layer] += 1
        chosen = {layer: counts.most_common(1)[0][0] for layer, counts in votes.items()}
        uses = Counter(chosen.values())
        return {layer: other for layer, other in chosen.items() if uses[other] == 1}

    @staticmethod
    def _free(side: _Side, used: Iterable[int], family: str) -> list[int]:
        taken = frozenset(used)
        return [number for number, row in side.tensors.items() if row.family == family and number not in taken]


def _near(
    one: _Side, other: _Side, numbers: Iterable[int], among: Iterable[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields each of some tensors that any others have the statistics of, with those in their order."""
    by_norm: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for each in among:
        by_norm[other.size(each)].append((other.known(each).get("l2", math.nan), each))
    for each in by_norm.values():
        each.sort()
    dtypes = {row.dtype or "float32" for row in other.tensors.values()}
    for number in numbers:
        ordered, norm = by_norm.get(one.size(number), []), one.known(number).get("l2", math.nan)
        row = one.tensors[number]
        # A bound on rel_l2 is at least the change of the norm: what is further apart does not agree.
        reach = norm * max(default_tolerance(row.family, row.dtype or "float32", dtype) for dtype in dtypes)
        first = bisect_left(ordered, norm - reach, key=itemgetter(0))
        last = bisect_right(ordered, norm + reach, key=itemgetter(0))
        near = sorted(each for _, each in ordered[first:last] if _agree(one, other, number, each))
        if near:
            yield number, tuple(near)


def _value(side: _Side, number: int) -> tuple[int, object]:
    """Returns the size of a tensor, and its value where it is a constant; None where it is none."""
    return side.size(number), side.known(number).get("mean") if side.is_constant(number) else None
