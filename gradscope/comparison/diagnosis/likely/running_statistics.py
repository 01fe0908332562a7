"""`RunningStatistics` finds running statistics of a batch norm that the programs update in different ways.

A variance is divided by the number of values in one, and by one less in the other. That shows a difference that is
within tolerance, too; no other diagnosis changes the verdict. Between PyTorch, which divides by one less, and a library
of JAX it is none, and is told beside the verdict. Or statistics move by another share of the way to those
of the batch, as where a momentum is what one keeps and what the other adds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.judging.judge import OF_PYTORCH
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, is_of_jax
from gradscope.comparison.pairing.values.debiased_averages import SUM, DebiasedAverage, debiased_averages
from gradscope.comparison.precision import dtype_class, machine_epsilon
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, AUX, INPUT, PARAM, PARAM_GRAD, STATE, key_of, split_key

#: The fewest channels that show another divisor of a variance: rounding could look like it in a few.
_FEWEST_CHANNELS: Final = 6

#: How many times the rounding of a type a difference is that shows anything.
_LEAST_ROUNDINGS: Final = 8

#: The relative error of what a difference shows beside rounding.
_NEARLY: Final = 0.05

#: That of what a difference shows in a few channels.
_EXACTLY: Final = 0.01

#: The relative error of two updates that are multiples of each other.
_PARALLEL: Final = 1e-3

#: The relative error of a share that is that of a common momentum.
_SHARE: Final = 2e-2

#: Shares that are common, each with what is left of one: what one program keeps is what the other adds.
_MOMENTA: Final = (0.1, 0.01, 0.001, 0.9, 0.99, 0.999)
_OF_SHARE: Final = "momentum is this share in PyTorch, and the rest in Flax"


class RunningStatistics:
    """RunningStatistics finds how updates of running statistics differ.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps

    def with_divisors(self, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]) -> dict[str, ComparisonRow]:
        """Returns the rows of running variances that are within tolerance and divided by another number, as different.

        Args:
            matches: The pairs.
            rows: Their rows, by the reference's keys.
        """
        if self._is_of_pytorch:
            return {}
        within = (each for each in matches if rows[each.ref].family == AUX and rows[each.ref].status == "same")
        found = ((each.ref, self.other_divisor(each)) for each in within if rows[each.ref].needed)
        return {key: replace(rows[key], status="different", tolerance=None, why=why) for key, why in found if why}

    def with_divisors_of_pytorch(
        self, matches: Iterable[Match], rows: Mapping[str, ComparisonRow]
    ) -> dict[str, ComparisonRow]:
        """Returns the rows of running variances that PyTorch divides by one less than a library of JAX, as the same.

        Args:
            matches: The pairs.
            rows: Their rows, by the reference's keys.
        """
        if not self._is_of_pytorch:
            return {}
        updated = (each for each in matches if rows[each.ref].family == AUX and rows[each.ref].needed)
        as_same = partial(replace, status="same", tolerance=None, rule="", needed=None, why=OF_PYTORCH)
        return {each.ref: as_same(rows[each.ref]) for each in updated if self._is_divided_as_in_pytorch(each)}

    def other_divisor(self, match: Match) -> str:
        """Returns that one program divides a variance by the number of values, and the other by one less; "" if not.

        Both add a share of the variance of a batch to the same running variance, `a * old + b * variance`. The two
        results are then apart by a multiple of the variance, so that `new - k * (other - new)` is `a * old`, where `k`
        is one less than the number of values, or minus that number. How many values there may be, shapes say.

        Args:
            match: A pair of auxiliary outputs.
        """
        if (found := self._updated(match)) is None:
            return ""
        start, new, other = found
        is_likely = self._is_of_pytorch or (new.size >= _FEWEST_CHANNELS and min(new.min(), start.min()) >= 0)
        if not is_likely:
            return ""
        apart, rounding = other - new, machine_epsilon(self._dumps.ref.entry(match.ref).dtype) * np.linalg.norm(new)
        if np.linalg.norm(apart) <= _LEAST_ROUNDINGS * rounding or not np.any(start):
            return ""
        # PyTorch's average of all steps, which has no momentum, keeps nothing of the start in the first one.
        least = -_EXACTLY if self._is_of_pytorch else 0.0
        for count in sorted(self._counts.get(new.size, ())):
            for factor, used, expected in ((count - 1, count - 1, count), (-count, count, count - 1)):
                kept = new - factor * apart
                share = float(start @ kept) / float(start @ start)
                # A few channels are near many shares, and one has any share.
                common = new.size >= _FEWEST_CHANNELS or _is_common(share) or abs(share) <= _PARALLEL
                nearly = _NEARLY if common else _EXACTLY
                close = np.linalg.norm(kept - share * start) <= nearly * np.linalg.norm(factor * apart)
                if least < share < 1 and close and (common or new.size > 1):
                    return f"divides the variance by {used}, and the reference by {expected}"
        return ""

    def other_share(self, match: Match) -> str:
        """Returns by how many times as much statistics move that programs update by other shares; "" where they do not.

        Args:
            match: A pair of auxiliary outputs.
        """
        if (found := self._updated(match)) is None or found[0].size < _FEWEST_CHANNELS:
            return ""
        start, new, other = found
        own, its = new - start, other - start
        if self._is_of_pytorch:
            its = self._with_one_divisor(start, own, its)
        # Parameters that begin at zero may be multiples of each other for any reason; statistics only move.
        is_state = match.cand in self._sums or self._is_state(split_key(match.ref)[1])
        if not np.any(own) or not (np.any(start) or is_state):
            return ""
        ratio = float(own @ its) / float(own @ own)
        if not ratio > 0 or np.linalg.norm(its - ratio * own) > _PARALLEL * min(
            np.linalg.norm(its), np.linalg.norm(own)
        ):
            return ""
        if abs(ratio - 1) < _NEARLY:
            return ""
        shares = () if self._is_learnt(split_key(match.ref)[1]) else _MOMENTA
        swapped = next((each for each in shares if abs(ratio * each / (1 - each) - 1) <= _PARALLEL), None)
        as_if = "" if swapped is None else f", as where a batch counts {1 - swapped:g}, not {swapped:g}: {_OF_SHARE}"
        return f"moves {ratio:.4g} times as far from its value before the step as the reference's{as_if}"

    @cached_property
    def _is_of_pytorch(self) -> bool:
        """Whether one of the dumps is a capture from PyTorch, and the other one is none."""
        return is_of_jax(self._dumps.ref) is not is_of_jax(self._dumps.cand)

    def _with_one_divisor(self, start: Array, own: Array, its: Array) -> Array:
        """Returns how far a running variance of the candidate moves with the reference's divisor; as it is for others.

        With shares `b` and `c` and the variance `v` the reference moves by `b * (v - start)`, and the candidate by
        `c * (r * v - start)`, which is `c / b * r * own + c * (r - 1) * start`. There, `r` is `(n - 1) / n`, or the
        inverse where the candidate is PyTorch's.

        Args:
            start: The running variance before the step.
            own: How far the reference's moves.
            its: How far the candidate's moves.
        """
        of_own, of_start = np.linalg.lstsq(np.stack([own, start], 1), its, rcond=None)[0]
        if np.linalg.norm(its - of_own * own - of_start * start) > _PARALLEL * np.linalg.norm(its):
            return its
        for count in sorted(self._counts.get(start.size, ())):
            r = (count - 1) / count if is_of_jax(self._dumps.cand) else count / (count - 1)
            if _is_common(of_start / (r - 1)):
                return of_own / r * own
        return its

    def _is_divided_as_in_pytorch(self, match: Match) -> bool:
        """Returns whether the divisor alone is another: by what PyTorch's layer reads, or else by the two updates."""
        measured = self._agrees_with_measured(match)
        return bool(self.other_divisor(match)) if measured is None else measured

    def _agrees_with_measured(self, match: Match) -> bool | None:
        """Returns whether both are made of the variance of what PyTorch's layer reads, each with its divisor.

        With that variance `v`, PyTorch's is `start + b * (v - start)`, which shows the share `b`. The other one is then
        `start + b * (v * (n - 1) / n - start)`.

        Returns:
            None where PyTorch's statistic is no such, or what its layer reads is not known.
        """
        of_ref = not is_of_jax(self._dumps.ref)
        found, read = self._updated(match), self._read_by(match.ref if of_ref else match.cand, of_ref=of_ref)
        if found is None or read is None or read.ndim < 2 or read.shape[1] != found[0].size:
            return None
        start, own, its = found if of_ref else (found[0], found[2], found[1])
        count = read.size // start.size
        variance = np.var(read, axis=tuple(axis for axis in range(read.ndim) if axis != 1), dtype=np.float64)
        moved = variance * count / max(count - 1, 1) - start
        share = float((own - start) @ moved) / float(moved @ moved) if np.any(moved) else 0.0
        entry, other = self._dumps.ref.entry(match.ref), self._dumps.cand.entry(match.cand)
        limit = self._dumps.tolerance(AUX, entry.dtype, other.dtype)
        if np.linalg.norm(start + share * moved - own) > limit * np.linalg.norm(own):
            return None
        expected = start + share * (variance - start)
        return bool(np.linalg.norm(expected - its) <= limit * np.linalg.norm(expected))

    def _read_by(self, key: str, *, of_ref: bool) -> Array | None:
        """Returns what the layer of a statistic reads; None where it is called several times, or that has no name."""
        source = self._dumps.ref if of_ref else self._dumps.cand
        path = split_key(key)[1].rpartition("/")[0]
        calls = [each for each in source.manifest.layers if each.path.partition("#")[0] == path]
        names = calls[0].inputs if len(calls) == 1 else ()
        keys = [key_of(family, names[0]) for family in (ACTIVATION, INPUT)] if len(names) == 1 else []
        known = frozenset(source.keys())
        return next((source.array(each) for each in keys if each in known and source.has_tensor(each)), None)

    def _updated(self, match: Match) -> tuple[Array, Array, Array] | None:
        """Returns statistics before an update, and behind those of both programs; None where one is not known.

        A sum of Haiku that started otherwise is as it would be, had it started at the reference's statistics.
        """
        ref, cand = self._dumps.ref, self._dumps.cand
        old = self._before(split_key(match.ref)[1])
        known = ref.has_tensor(match.ref) and all(map(cand.has_tensor, match.recipe.keys))
        if old is None or not known or len(match.recipe.keys) > 1 or match.recipe.part:
            return None
        if dtype_class(ref.entry(match.ref).dtype) != "float":  # a count of updates
            return None
        arrays = (old, ref.array(match.ref), match.recipe.array(cand))
        start, new, other = (np.ravel(each).astype(np.float64) for each in arrays)
        if (average := self._sums.get(match.cand)) is not None:
            from_start = average.from_start(start)
            other = other if from_start is None else from_start
        return (start, new, other) if start.shape == new.shape == other.shape else None

    @cached_property
    def _sums(self) -> Mapping[str, DebiasedAverage]:
        """Haiku's averages of the candidate by the keys of their updated sums, where the reference has none."""
        averages = [] if debiased_averages(self._dumps.ref) else debiased_averages(self._dumps.cand)
        return {each.after[SUM]: each for each in averages if each.after}

    def _before(self, name: str) -> Array | None:
        """Returns the parameter or state that an auxiliary output updates, by its name; None where there is none."""
        return next((self._dumps.ref.array(key) for key in self._named(name) if self._dumps.ref.has_tensor(key)), None)

    def _named(self, name: str) -> list[str]:
        """Returns the keys of the parameters and state that an auxiliary output may update, by its name."""
        return [*self._stored.get(name, ()), *(key for each in _ends(name) for key in self._by_name.get(each, ()))]

    def _is_state(self, name: str) -> bool:
        """Returns whether an auxiliary output updates state, which has no gradient, and no parameter."""
        return {split_key(key)[0] for key in self._named(name)} == {STATE}

    def _is_learnt(self, name: str) -> bool:
        """Returns whether what an auxiliary output updates has a gradient, as no statistics have."""
        gradients = (key_of(PARAM_GRAD, split_key(key)[1]) for key in self._named(name) if split_key(key)[0] == PARAM)
        known = frozenset(self._dumps.ref.keys())
        return any(as_float(self._dumps.ref.entry(key).stats.get("rms", 0.0)) != 0 for key in gradients if key in known)

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[str]]:
        """The keys of parameters and state by their names."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for entry in self._dumps.ref.manifest.entries:
            if entry.family in (PARAM, STATE):
                found[entry.name].append(key_of(entry.family, entry.name))
        return found

    @cached_property
    def _stored(self) -> Mapping[str, Sequence[str]]:
        """The keys of parameters and state by their names, and by what those end with."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name, keys in self._by_name.items():
            for each in (name, *_ends(name)):
                found[each] += keys
        return found

    @cached_property
    def _counts(self) -> Mapping[int, set[int]]:
        """How many values each of some channels may have, by the number of channels: the shapes of activations say."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for entry in self._dumps.ref.manifest.entries:
            if entry.family == ACTIVATION:
                for channels in {*entry.shape} - {0}:
                    found[channels] |= {math.prod(entry.shape) // channels} - {0, 1}
        return found


def _is_common(share: float) -> bool:
    """Returns whether a share is that of a common momentum."""
    return any(abs(share - each) <= _SHARE * each for each in _MOMENTA)


def _ends(name: str) -> Iterator[str]:
    """Yields the names that a name ends with, without collections around them: `norm/mean` of `stats/norm/mean`."""
    while "/" in name:
        name = name.partition("/")[2]
        yield name
