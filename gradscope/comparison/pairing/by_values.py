"""The pass of fingerprints: tensors that have the same values, in whatever layout and under whatever name.

Statistics that no layout changes (norm, mean, deviation, extremes) bound from below how far two tensors are apart;
pairs that they leave are read and proved: every element, in the layout that a sample of them found, within tolerance.

Several tensors may have the same values, biases that are all zero, say. Then the names decide: the pair that has most
in common with pairs that were found already, `conv1/bias` with `features.0.bias` because `conv1/kernel` is
`features.0.weight`. What is paired in one family is paired in the others, too: a gradient belongs to its parameter.

Sharp edge: a single number is no fingerprint.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import product, takewhile

from gradscope.arrays.blocks import blocks
from gradscope.comparison.layout.layouts import agreeing_layouts, arranged, arranged_part
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.block_pairs import block_pairs
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.metrics.measure_pair import measure
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.normal_forms import tokens_of
from gradscope.comparison.precision import comparable, default_tolerance, yardstick_of
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.record import Json
from gradscope.naming import TENSOR, key_of, split_key
from gradscope.stats import stats_of_chunks


def by_fingerprint(dumps: Dumps, left: Pairing) -> Iterator[Match]:
    """The pass of fingerprints."""
    proven = list(_proven(dumps, left))
    rivals = Counter(key for match in proven for key in (f"ref {match.ref}", f"cand {match.cand}"))
    sure = [match for match in proven if rivals[f"ref {match.ref}"] == rivals[f"cand {match.cand}"] == 1]
    likeness = _Likeness([*left.matched, *sure])
    unsure = [match for match in proven if match not in sure]
    # A stable sort: of two that names cannot tell apart the first in either dump comes first.
    found = [*sure, *sorted(unsure, key=likeness, reverse=True)]
    yield from found
    yield from _siblings(dumps, left.with_matches(found))


class _Likeness:
    """How much speaks for a pair, going by names: scopes that hold pairs of each other, then how alike their ends are.

    Of two scopes it counts which share of all pairs that either of them holds lies in both: 1 for the same block of two
    programs, whatever they call it.
    """

    def __init__(self, matches: Iterable[Match]) -> None:
        self._together: Counter[tuple[str, str]] = Counter()
        self._ref: Counter[str] = Counter()
        self._cand: Counter[str] = Counter()
        for match in matches:
            ref, cand = _scopes(match.ref), _scopes(match.cand)
            self._together.update(product(ref, cand))
            self._ref.update(ref)
            self._cand.update(cand)

    def __call__(self, match: Match) -> tuple[float, int]:
        shared = sum(self._share(*scopes) for scopes in product(_scopes(match.ref), _scopes(match.cand)))
        one, other = (tokens_of(split_key(key)[1])[::-1] for key in (match.ref, match.cand))
        return shared, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

    def _share(self, ref: str, cand: str) -> float:
        together = self._together[ref, cand]
        return together / (self._ref[ref] + self._cand[cand] - together) if together else 0.0


def _proven(dumps: Dumps, left: Pairing) -> Iterator[Match]:
    """Every pair of what is left whose values are the same, rivals included."""
    by_size: defaultdict[int, list[str]] = defaultdict(list)
    for key in _measurable(dumps.cand, left.only_cand):
        by_size[math.prod(dumps.cand.entry(key).shape)].append(key)
    ref_stats, cand_stats = _statistics(dumps.ref), _statistics(dumps.cand)
    for key in _measurable(dumps.ref, left.only_ref):
        for other in by_size[math.prod(dumps.ref.entry(key).shape)]:
            if (tolerance := _tolerance(dumps, key, other)) is not None:
                bound = least_rel_l2(ref_stats(key), cand_stats(other))
                if bound is not None and bound.rel_l2 <= tolerance and (recipe := _proof(dumps, key, other, tolerance)):
                    yield Match(ref=key, recipe=recipe, matched_by="fingerprint")


def _measurable(source: DumpSource, keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        entry = source.entry(key)
        if math.prod(entry.shape) > 1 and entry.alias_of is None and source.has_tensor(key):
            yield key


def _tolerance(dumps: Dumps, ref: str, cand: str) -> float | None:
    """How far two tensors may be apart; None where they cannot be the same."""
    one, other = dumps.ref.entry(ref), dumps.cand.entry(cand)
    if one.family != other.family and TENSOR not in (one.family, other.family):
        return None
    if not comparable(one.dtype, other.dtype):
        return None
    return default_tolerance(one.family, one.dtype, other.dtype, reduced=False)


def _statistics(source: DumpSource) -> Callable[[str], Mapping[str, Json]]:
    """Statistics by key, measured where the dump has none; each once."""

    @cache
    def statistics(key: str) -> Mapping[str, Json]:
        entry = source.entry(key)
        if entry.stats:
            return entry.stats
        chunks = source.chunks(key, reused=True)
        return stats_of_chunks(chunks, shape=entry.shape, dtype=entry.dtype, tier="core").to_json()

    return statistics


def _proof(dumps: Dumps, ref: str, cand: str, tolerance: float) -> Recipe | None:
    """What makes a tensor of the candidate the same as one of the reference; None where nothing does."""
    one, other = dumps.ref.array(ref), dumps.cand.array(cand)
    ref_entry, cand_entry = dumps.ref.entry(ref), dumps.cand.entry(cand)
    agreeing = agreeing_layouts(arranged_part(one, ref_entry), arranged_part(other, cand_entry))
    if not agreeing:
        return None
    recipe = Recipe(keys=(cand,), steps=agreeing[0].steps(arranged(cand_entry)))
    other = recipe.made_of([other])
    dtypes = (source.entry(key).dtype for source, key in ((dumps.ref, ref), (dumps.cand, cand)))
    metrics = measure(block_pairs(blocks(one), blocks(other)), yardstick_of(*dtypes, rtol=0.0, atol=0.0))
    return recipe if metrics.needed <= tolerance else None


def _siblings(dumps: Dumps, found: Pairing) -> Iterator[Match]:
    """Tensors of other families under the names of pairs that were found, of the same shapes."""
    recipes = {
        split_key(match.ref)[1]: (match, split_key(match.cand)[1])
        for match in found.matched
        if match.matched_by == "fingerprint"
    }
    left = frozenset(found.only_cand)
    for key in found.only_ref:
        family, name = split_key(key)
        if name in recipes:
            match, cand_name = recipes[name]
            other = key_of(family, cand_name)
            if other in left and _shapes(dumps, key, other) == _shapes(dumps, match.ref, match.cand):
                yield Match(ref=key, recipe=Recipe(keys=(other,), steps=match.recipe.steps), matched_by="fingerprint")


def _shapes(dumps: Dumps, ref: str, cand: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return arranged(dumps.ref.entry(ref)), arranged(dumps.cand.entry(cand))


def _scopes(key: str) -> list[str]:
    """The scopes around a tensor, from the outermost inwards."""
    parts = re.split(r"[/.]", split_key(key)[1])
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
