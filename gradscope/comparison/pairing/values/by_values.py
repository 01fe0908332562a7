"""`by_fingerprint` matches tensors with the same values, in any layout and under any name.

Statistics that do not depend on the layout (norm, mean, standard deviation, extremes) are a lower bound of how much two
tensors differ. Pairs below the tolerance by that bound are read and verified: all elements have to agree within
tolerance, in the layout that a sample of them selected.

Several tensors can have the same values, for example biases that are all zero. Then `same_use` decides first, by what
uses them and by their gradients, and names last: the pair that has most in common with pairs found so far, such as
`conv1/bias` with `features.0.bias` because `conv1/kernel` is paired with `features.0.weight`. Names paired in one
family are paired in the others too, a gradient with its parameter.

Sharp edge: tensors of a single element are never matched by value.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product, takewhile

from gradscope.arrays.blocks import blocks
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.layout.layouts import arranged
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.block_pairs import block_pairs
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.metrics.measure_pair import measure
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.normal_forms import tokens_of
from gradscope.comparison.pairing.values.same_use import SameUse
from gradscope.comparison.precision import comparable, scale_of
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.record import Json
from gradscope.naming import AUX, PARAM, PARAM_GRAD, STATE, TENSOR, is_gradient, key_of, split_key, subject_family
from gradscope.stats import stats_of_chunks


def by_fingerprint(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of equal values; gradients first by the pairs of their values, then by their own."""
    found = list(_of_families(dumps, unmatched, gradients=False))
    yield from found
    siblings = list(by_sibling(dumps, unmatched.with_matches(found)))
    yield from siblings
    yield from _of_families(dumps, unmatched.with_matches([*found, *siblings]), gradients=True)


def by_sibling(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of the gradients of values that are paired, by the same recipe."""
    recipes = {match.ref: match for match in unmatched.matched}
    free = frozenset(unmatched.only_cand)
    for key in unmatched.only_ref:
        family, name = split_key(key)
        subject = subject_family(family)
        match = None if subject is None else recipes.get(key_of(subject, name))
        if match is not None and all(split_key(each)[0] == subject for each in match.recipe.keys):
            keys = tuple(key_of(family, split_key(each)[1]) for each in match.recipe.keys)
            # A program can return a value twice, and the loss reads one of them: equal values are no equal uses.
            if match.matched_by != "name" and _is_used(dumps.ref, key) is not _is_used(dumps.cand, keys[0]):
                continue
            if free.issuperset(keys) and _shapes(dumps, key, keys[0]) == _shapes(dumps, match.ref, match.cand):
                yield Match(ref=key, recipe=replace(match.recipe, keys=keys), matched_by=match.matched_by)


def _is_used(source: DumpSource, key: str) -> bool:
    """Returns whether the loss depends on a value, by the key of its gradient; also where that is not in the dump."""
    return key not in source.keys() or source.entry(source.resolve(key)).absent is None  # noqa: SIM118 - no mapping


def by_updated_state(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:  # noqa: ARG001 - only names are compared
    """Yields matches of auxiliary outputs that have the names of paired parameters or state, which they update."""
    names = {
        split_key(match.ref)[1]: split_key(match.cand)[1]
        for match in unmatched.matched
        if split_key(match.ref)[0] in (PARAM, STATE) and len(match.recipe.keys) == 1
    }
    outputs = [split_key(key)[1] for key in unmatched.only_cand if split_key(key)[0] == AUX]
    for key in (key for key in unmatched.only_ref if split_key(key)[0] == AUX):
        for name in (name for name in names if _of_one_name(name, split_key(key)[1])):
            updated = [output for output in outputs if _of_one_name(names[name], output)]
            if len(updated) == 1:
                yield Match.of(key, key_of(AUX, updated[0]), "path")


def _of_one_name(name: str, output: str) -> bool:
    """Returns whether one of two names is the other within a collection, `batch_stats/norm/mean` for `norm/mean`."""
    return f"/{name}".endswith(f"/{output}") or f"/{output}".endswith(f"/{name}")


def values_agree(dumps: Dumps, match: Match) -> bool:
    """Returns whether the two tensors of a plain match have equal values in any layout."""
    limit = _tolerance(dumps, match.ref, match.cand)
    return limit is not None and _recipe(dumps, LayoutSearch(dumps), (match.ref, match.cand), limit) is not None


def equal_values(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields every match of equal values among unmatched tensors, also several for one tensor."""
    equality = Equality(dumps)
    by_size: defaultdict[int, list[str]] = defaultdict(list)
    for key in _measurable(dumps.cand, unmatched.only_cand):
        by_size[math.prod(dumps.cand.entry(key).shape)].append(key)
    for key in _measurable(dumps.ref, unmatched.only_ref):
        for other in by_size[math.prod(dumps.ref.entry(key).shape)]:
            if (recipe := equality.recipe(key, other)) is not None:
                yield Match(ref=key, recipe=recipe, matched_by="fingerprint")


class Equality:
    """Equality finds whether two tensors have equal values in any layout; statistics rule most pairs out.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps
        self._search = LayoutSearch(dumps)
        self._ref_stats, self._cand_stats = _statistics(dumps.ref), _statistics(dumps.cand)
        self._ref_gradients, self._cand_gradients = _param_gradients(dumps.ref), _param_gradients(dumps.cand)

    def recipe(self, ref: str, cand: str) -> Recipe | None:
        """Returns the recipe that makes the reference's tensor of the candidate's; None where values differ."""
        limit = _tolerance(self._dumps, ref, cand)
        if limit is None:
            return None
        bound = least_rel_l2(self._ref_stats(ref), self._cand_stats(cand))
        if bound is None or bound.rel_l2 > limit:
            return None
        if _is_constant(self._ref_stats(ref)) and not _alike(self._dumps, ref, cand):
            return None
        return _recipe(self._dumps, self._search, (ref, cand), limit)

    def of_gradients(self, match: Match) -> bool:
        """Returns whether the gradients of a parameter and its counterpart are equal, and no constants."""
        (family, name), other = split_key(match.ref), split_key(match.cand)[1]
        if family != PARAM:
            return False
        ref, cand = key_of(PARAM_GRAD, name), key_of(PARAM_GRAD, other)
        if ref not in self._ref_gradients or cand not in self._cand_gradients:
            return False
        return not _is_constant(self._ref_stats(ref)) and self.recipe(ref, cand) is not None


def _is_constant(statistics: Mapping[str, Json]) -> bool:
    return "min" in statistics and statistics["min"] == statistics.get("max")


def _alike(dumps: Dumps, ref: str, cand: str) -> bool:
    """Returns whether two tensors have the same sizes, in any order: constants are equal in every other shape, too."""
    return sorted(dumps.ref.entry(ref).shape) == sorted(dumps.cand.entry(cand).shape)


def _of_families(dumps: Dumps, unmatched: Pairing, *, gradients: bool) -> Iterator[Match]:
    """Yields matches of equal values among gradients, or among all other tensors."""
    wanted = {family for keys in (unmatched.only_ref, unmatched.only_cand) for family, _ in map(split_key, keys)}
    wanted = {family for family in wanted if is_gradient(family) is gradients}
    some = replace(
        unmatched,
        only_ref=tuple(key for key in unmatched.only_ref if split_key(key)[0] in wanted),
        only_cand=tuple(key for key in unmatched.only_cand if split_key(key)[0] in {*wanted, TENSOR}),
    )
    verified = list(equal_values(dumps, some))
    uses = Counter(key for match in verified for key in (f"ref {match.ref}", f"cand {match.cand}"))
    unique = [match for match in verified if uses[f"ref {match.ref}"] == uses[f"cand {match.cand}"] == 1]
    certain = frozenset(unique)
    ambiguous = [match for match in verified if match not in certain]
    similarity, use = _NameSimilarity([*unmatched.matched, *unique]), SameUse(dumps, [*unmatched.matched, *unique])
    equality = Equality(dumps)

    def evidence(match: Match) -> tuple[int, bool, tuple[float, int]]:
        return use.shared(match), equality.of_gradients(match), similarity(match)

    # The sort is stable: among matches that nothing distinguishes, the order of the dumps decides.
    yield from [*unique, *sorted(ambiguous, key=evidence, reverse=True)]


class _NameSimilarity:
    """_NameSimilarity rates a match by its names: first by scopes that contain known matches, then by equal ends.

    For two scopes, one in each dump, it counts the fraction of all known matches in either scope that are in both. The
    fraction is 1 for the same block of two programs, whatever the block is called.
    """

    def __init__(self, matches: Iterable[Match]) -> None:
        self._cooccurrences: Counter[tuple[str, str]] = Counter()
        self._ref: Counter[str] = Counter()
        self._cand: Counter[str] = Counter()
        for match in matches:
            ref, cand = _scopes(match.ref), _scopes(match.cand)
            self._cooccurrences.update(product(ref, cand))
            self._ref.update(ref)
            self._cand.update(cand)

    def __call__(self, match: Match) -> tuple[float, int]:
        shared = sum(self._share(*scopes) for scopes in product(_scopes(match.ref), _scopes(match.cand)))
        one, other = (tokens_of(split_key(key)[1])[::-1] for key in (match.ref, match.cand))
        return shared, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

    def _share(self, ref: str, cand: str) -> float:
        cooccurrences = self._cooccurrences[ref, cand]
        return cooccurrences / (self._ref[ref] + self._cand[cand] - cooccurrences) if cooccurrences else 0.0


def _param_gradients(source: DumpSource) -> frozenset[str]:
    return frozenset(_measurable(source, (key for key in source.keys() if split_key(key)[0] == PARAM_GRAD)))  # noqa: SIM118 - no mapping


def _measurable(source: DumpSource, keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        entry = source.entry(key)
        if math.prod(entry.shape) > 1 and entry.alias_of is None and source.has_tensor(key):
            yield key


def _tolerance(dumps: Dumps, ref: str, cand: str) -> float | None:
    """Returns how much two tensors may differ; None where their families or dtypes do not fit."""
    one, other = dumps.ref.entry(ref), dumps.cand.entry(cand)
    families = {one.family, other.family}
    frozen = families == {PARAM, STATE} and _is_state(dumps.ref, ref) and _is_state(dumps.cand, cand)
    if len(families) > 1 and TENSOR not in families and not frozen:
        return None
    if not comparable(one.dtype, other.dtype):
        return None
    return default_tolerance(one.family, one.dtype, other.dtype, reduced=False)


def _is_state(source: DumpSource, key: str) -> bool:
    """Returns whether a tensor is state, as is a parameter that the loss has no gradient of, whatever it is called."""
    family, name = split_key(key)
    gradient = key_of(PARAM_GRAD, name)
    return family == STATE or (gradient in source.keys() and source.entry(gradient).absent is not None)  # noqa: SIM118


def _statistics(source: DumpSource) -> Callable[[str], Mapping[str, Json]]:
    """Returns a function from a key to its statistics; those that the dump lacks are computed once."""

    @cache
    def statistics(key: str) -> Mapping[str, Json]:
        entry = source.entry(key)
        if entry.stats:
            return entry.stats
        chunks = source.chunks(key, reused=True)
        return stats_of_chunks(chunks, shape=entry.shape, dtype=entry.dtype, tier="core").to_json()

    return statistics


def _recipe(dumps: Dumps, search: LayoutSearch, keys: tuple[str, str], tolerance: float) -> Recipe | None:
    """Returns the recipe that makes a reference's tensor of a candidate's; None where they differ in every layout."""
    ref, cand = keys
    agreeing = search.agreeing(ref, cand)
    if not agreeing:
        return None
    recipe = Recipe(keys=(cand,), steps=agreeing[0].steps(arranged(dumps.cand.entry(cand))))
    one, other = dumps.ref.array(ref), recipe.made_of([dumps.cand.array(cand)])
    dtypes = (source.entry(key).dtype for source, key in ((dumps.ref, ref), (dumps.cand, cand)))
    metrics = measure(block_pairs(blocks(one), blocks(other)), scale_of(*dtypes, rtol=0.0, atol=0.0))
    return recipe if metrics.needed <= tolerance else None


def _shapes(dumps: Dumps, ref: str, cand: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return arranged(dumps.ref.entry(ref)), arranged(dumps.cand.entry(cand))


def _scopes(key: str) -> list[str]:
    """Returns the scopes around a tensor, the outermost first."""
    parts = re.split(r"[/.]", split_key(key)[1])
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
