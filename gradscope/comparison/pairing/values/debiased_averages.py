"""Haiku's running statistics are sums that begin at zero, and averages that divide them by one minus the decay's power.

Other libraries have one number for both, which begins at a value of its own: a variance at one. So a Haiku
`ExponentialMovingAverage` has a counterpart in its sum where that began as the other program's statistics did. Where
both are as their libraries begin them, their updates are alike if they add the same to the same share of what was there
before; the sum tells the share, since the average beside it is the sum over what is not of the start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.recipe_steps import Reshape
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.normal_forms import NamesWithin, tokens_of
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import AUX, PARAM, STATE, key_of, split_key

#: What Haiku keeps of an average: the sum, the average, and how many values were added.
SUM: Final = "hidden"
_AVERAGE: Final = "average"
_COUNTER: Final = "counter"

#: The statistics of a batch norm.
_KINDS: Final = ("mean", "var")

#: The least share of the start that is left in a sum which shows the decay beside rounding.
_LEAST_KEPT: Final = 1e-4

#: How many roundings of the result an update of it may be off.
_ROUNDINGS: Final = 4

#: Why the state of two libraries does not count that both begin in their own way.
_BEGUN: Final = "as its library begins it: Haiku's sums at zero, and an average divides them by 1 - decay^n"
_OF_SUM: Final = "the average that Haiku computes from the sum beside it, which is compared"
_UNCHANGED: Final = "an average that Haiku returns as it was before the step, with the sum beside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class DebiasedAverage:
    """A DebiasedAverage is one `ExponentialMovingAverage` of Haiku in a dump.

    Attributes:
        source: The dump.
        scope: The name of its scope, collection included.
        before: The keys of its sum, average and counter, by their names.
        after: Those of the outputs that update them; empty where the program returns none.
    """

    source: DumpSource
    scope: str
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def layer(self) -> str:
        """The name of the layer that has it."""
        return self.scope.rpartition("/")[0].removesuffix("/~")

    @property
    def kind(self) -> str:
        """Which statistic it is, `mean` or `var`; another word for one that is of no batch norm."""
        return tokens_of(self.scope.rpartition("/")[2])[0]

    def array(self, key: str) -> Array | None:
        """Returns the numbers of one of its keys in a row; None where the dump has none."""
        return np.ravel(self.source.array(key)).astype(np.float64) if self.source.has_tensor(key) else None

    def has_begun(self) -> bool:
        """Returns whether it had been updated before, or loaded; `init` makes the average of its own batch."""
        arrays = [self.array(self.before[each]) for each in (SUM, _COUNTER)]
        return any(each is None or np.any(each) for each in arrays)

    def is_unchanged(self) -> bool:
        """Returns whether the program returns its sum and its average as they were, as it does in evaluation."""
        if not self.after:
            return False
        pairs = [(self.array(self.before[each]), self.array(self.after[each])) for each in (SUM, _AVERAGE)]
        return all(one is not None and other is not None and np.array_equal(one, other) for one, other in pairs)

    def multiple_of_sum(self, keys: Mapping[str, str]) -> float | None:
        """Returns how many times its sum its average is; None where it is no multiple, as one that was not loaded.

        Args:
            keys: Its keys before the update, or after it.
        """
        total, average = self.array(keys[SUM]), self.array(keys[_AVERAGE])
        if total is None or average is None or total.shape != average.shape:
            return None
        if np.array_equal(total, average) or (keys is self.before and not self.has_begun()):
            return 1.0
        multiple = float(total @ average) / float(total @ total) if np.any(total) else 0.0
        near = np.linalg.norm(average - multiple * total) <= _LEAST_KEPT * np.linalg.norm(average)
        return multiple if multiple > 1 and near else None

    def from_start(self, start: Array) -> Array | None:
        """Returns what its sum would be after the update, had it started at other values; None where it is unknown."""
        if not self.after:
            return None
        keys = (self.before[SUM], *(self.after[each] for each in (SUM, _AVERAGE, _COUNTER)))
        arrays = [self.array(key) for key in keys]
        if any(each is None for each in arrays):
            return None
        own, total, average, counter = (each for each in arrays if each is not None)
        if own.shape != start.shape or not np.any(average) or counter.size != 1 or counter[0] < 1:
            return None
        kept = 1 - float(total @ average) / float(average @ average)
        if not _LEAST_KEPT < kept < 1:
            return total if np.array_equal(start, own) else None
        return total + kept ** (1 / float(counter[0])) * (start - own)


def debiased_averages(source: DumpSource) -> list[DebiasedAverage]:
    """Returns the averages of Haiku in a dump."""
    names: defaultdict[str, dict[str, set[str]]] = defaultdict(dict)
    for entry in source.manifest.entries:
        scope, _, last = entry.name.rpartition("/")
        if entry.family in (STATE, AUX) and last in (SUM, _AVERAGE, _COUNTER):
            names[entry.family].setdefault(scope, set()).add(last)
    whole = {family: [scope for scope, found in each.items() if len(found) == 3] for family, each in names.items()}
    updated = NamesWithin(whole.get(AUX, ()))
    found: list[DebiasedAverage] = []
    for scope in whole.get(STATE, ()):
        others = updated.of(scope)
        before, after = ({each: key_of(family, f"{at}/{each}") for each in (SUM, _AVERAGE, _COUNTER)}
                         for family, at in ((STATE, scope), (AUX, others[0] if others else "")))  # fmt: skip
        found.append(
            DebiasedAverage(source=source, scope=scope, before=before, after=after if len(others) == 1 else {})
        )
    return found


def averages_beside_sums(dumps: Dumps) -> frozenset[str]:
    """Returns the keys of the reference's averages whose sums the candidate has, as sums of a running mean are one.

    What is loaded into both, or begins at zero in both, moves as the sum does.
    """
    if debiased_averages(dumps.cand):
        return frozenset()
    found: list[str] = []
    for each in debiased_averages(dumps.ref):
        one, other = each.array(each.before[SUM]), each.array(each.before[_AVERAGE])
        if one is not None and other is not None and np.array_equal(one, other):
            found += [keys[_AVERAGE] for keys in (each.before, each.after) if keys]
    return frozenset(found)


def by_debiased_average(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of running statistics with Haiku's sums that are updated otherwise, or start otherwise."""
    free = frozenset((*unmatched.only_ref, *unmatched.only_cand))
    for turned in (False, True):
        for each, start, end in _pairs(dumps, unmatched.matched, turned=turned):
            alike = _Alike(dumps, each, start, end)
            of_start = start, each.before[SUM]
            pairs = [of_start] if start in free and not alike.begin_alike else []
            if end is not None and each.after and not alike.move_alike:
                pairs.append((end, each.after[SUM]))
            for one, other in pairs:
                if free.issuperset((one, other)):
                    yield _in_shape(dumps, *((other, one) if turned else (one, other)))


def _in_shape(dumps: Dumps, ref: str, cand: str) -> Match:
    """Returns the match of two tensors, of which Haiku's has axes of one."""
    one, other = dumps.ref.entry(ref).shape, dumps.cand.entry(cand).shape
    steps = (Reshape(one),) if one != other and prod(one) == prod(other) else ()
    return Match(ref=ref, recipe=Recipe(keys=(cand,), steps=steps), matched_by="path")


def updated_alike(dumps: Dumps, pairing: Pairing) -> dict[str, str]:
    """Returns why running statistics of Haiku and of another library need no counterpart, by their keys."""
    found: dict[str, str] = {}
    matched = {key for each in pairing.matched for key in (each.ref, *each.recipe.keys)}
    for source, other in ((dumps.ref, dumps.cand), (dumps.cand, dumps.ref)):
        for each in () if debiased_averages(other) else debiased_averages(source):
            for keys in (each.before, each.after):
                if keys and keys[SUM] in matched and (multiple := each.multiple_of_sum(keys)) is not None:
                    times = (
                        "" if abs(multiple - 1) < _LEAST_KEPT else f", {multiple:.4g} times that as its counter says"
                    )
                    found[keys[_AVERAGE]] = f"{_OF_SUM}{times}"
            if each.before[_AVERAGE] in found and each.is_unchanged() and each.after[SUM] not in matched:
                found[each.after[_AVERAGE]] = _UNCHANGED
    for turned in (False, True):
        for each, start, end in _pairs(dumps, pairing.matched, turned=turned):
            alike = _Alike(dumps, each, start, end)
            keys = [start, each.before[SUM], each.before[_AVERAGE]] if alike.begin_alike else []
            if alike.begin_alike and end is not None and alike.move_alike:
                keys += [end, each.after[SUM], each.after[_AVERAGE]]
            found |= {key: found.get(key, _BEGUN) for key in keys if key not in matched}
    return found


class _Alike:
    """_Alike tells whether running statistics begin, and move, as a debiased average does."""

    def __init__(self, dumps: Dumps, average: DebiasedAverage, start: str, end: str | None) -> None:
        source = dumps.cand if average.source is dumps.ref else dumps.ref
        self._first = np.ravel(source.array(start)).astype(np.float64) if source.has_tensor(start) else None
        begun = 1.0 if average.kind == "var" else 0.0
        self.begin_alike = self._first is not None and not average.has_begun() and bool(np.all(self._first == begun))
        self.move_alike = False
        if end is not None and self._first is not None and source.has_tensor(end):
            expected, entry = average.from_start(self._first), source.entry(end)
            limit = dumps.tolerance(AUX, entry.dtype, entry.dtype)
            new = np.ravel(source.array(end)).astype(np.float64)
            added = average.array(average.after[SUM]) if average.after else None
            if expected is not None and added is not None and expected.shape == new.shape:
                # Beside what is kept of the start, little is added in one step, and it is what may be another.
                rounding = _ROUNDINGS * machine_epsilon(entry.dtype) * np.linalg.norm(new)
                self.move_alike = bool(np.linalg.norm(expected - new) <= limit * np.linalg.norm(added) + rounding)


def _pairs(
    dumps: Dumps, matches: Sequence[Match], *, turned: bool
) -> Iterator[tuple[DebiasedAverage, str, str | None]]:
    """Yields the averages of one program with the other's statistics of the same layer, and with what updates them.

    Args:
        dumps: The dumps.
        matches: The pairs of their tensors.
        turned: Whether the averages are the reference's.
    """
    source, other = (dumps.ref, dumps.cand) if turned else (dumps.cand, dumps.ref)
    averages = debiased_averages(source)
    if not averages or debiased_averages(other):
        return
    layers: set[tuple[str, str]] = set()
    for match in matches:
        if split_key(match.ref)[0] == PARAM and len(match.recipe.keys) == 1:
            one, two = (split_key(key)[1].rpartition("/")[0] for key in (match.ref, match.cand))
            layers.add((two, one) if turned else (one, two))
    statistics = _statistics(other)
    updated = NamesWithin(dict.fromkeys(each.name for each in other.manifest.entries if each.family == AUX))
    for each in (each for each in averages if each.kind in _KINDS):
        found = [
            name
            for name, (layer, kind) in statistics.items()
            if kind == each.kind and any(_is_of(layer, one) and _is_of(each.layer, two) for one, two in layers)
        ]
        if len(found) == 1:
            ends = updated.of(found[0])
            yield each, key_of(STATE, found[0]), key_of(AUX, ends[0]) if len(ends) == 1 else None


def _statistics(source: DumpSource) -> Mapping[str, tuple[str, str]]:
    """Returns the layer and the kind of each running statistic, by its name."""
    names = [each.name for each in source.manifest.entries if each.family == STATE]
    kinds = {name: (tokens_of(name) or ("",))[-1] for name in names}
    return {name: (name.rpartition("/")[0], kind) for name, kind in kinds.items() if kind in _KINDS}


def _is_of(layer: str, name: str) -> bool:
    return layer == name or layer.endswith(f"/{name}")
