"""`Equality` finds whether two tensors have equal values in any layout, reading tensors of equal values once.

A *class* has the tensors of one family, dtype and shape that have the same bytes, by their hash. What holds for one
tensor of a class holds for all of them, so that two classes are compared by one pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from math import isclose, prod
from typing import Final, TypeAlias

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.digest import Digest
from gradscope.comparison.layout.example_orders import has_moved_examples
from gradscope.comparison.layout.layouts import arranged
from gradscope.comparison.layout.recipe_steps import RecipeStep
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.block_pairs import block_pairs
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.metrics.measure_pair import measure
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import comparable, scale_of
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    INPUT,
    PARAM,
    PARAM_GRAD,
    STATE,
    TENSOR,
    gradient_key,
    key_of,
    split_key,
)
from gradscope.stats import stats_of_chunks

#: Family, dtype, shape and hash; a parameter without a gradient is of a family of its own.
ValueClass: TypeAlias = tuple[str, str, tuple[int, ...], Json]

#: The relative error of the norms of two gradients that may be the same.
_SAME_NORM: Final = 1e-2

#: Returns the statistics of a tensor by its key.
Statistics: TypeAlias = Callable[[str], Mapping[str, Json]]


class Equality:
    """Equality finds whether two tensors have equal values in any layout; statistics rule most pairs out.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps
        self._search = LayoutSearch(dumps)
        self.ref_stats, self.cand_stats = _statistics(dumps.ref), _statistics(dumps.cand)
        self._ref_absent, self._cand_absent = absent_keys(dumps.ref), absent_keys(dumps.cand)
        self.ref_class = _classes(dumps.ref, self.ref_stats, self._ref_absent, "reference")
        self.cand_class = _classes(dumps.cand, self.cand_stats, self._cand_absent, "candidate")
        self._steps: dict[tuple[ValueClass, ValueClass], tuple[RecipeStep, ...] | None] = {}

    def recipe(self, ref: str, cand: str) -> Recipe | None:
        """Returns the recipe that makes the reference's tensor of the candidate's; None where values differ."""
        classes = self.ref_class(ref), self.cand_class(cand)
        try:
            steps = self._steps[classes]  # once, because these names of classes are long
        except KeyError:
            steps = self._steps[classes] = self._found(ref, cand)
        return None if steps is None else Recipe(keys=(cand,), steps=steps)

    def _found(self, ref: str, cand: str) -> tuple[RecipeStep, ...] | None:
        limit = self.tolerance(ref, cand)
        if limit is None:
            return None
        if is_constant(self.ref_stats(ref)) and not _alike(self._dumps, ref, cand):
            return None
        if self.ref_class(ref)[1:] == self.cand_class(cand)[1:]:
            return ()
        bound = least_rel_l2(self.ref_stats(ref), self.cand_stats(cand))
        if bound is None or bound.rel_l2 > limit:
            return None
        return _steps(self._dumps, self._search, (ref, cand), limit)

    def tolerance(self, ref: str, cand: str) -> float | None:
        """Returns how much two tensors may differ; None where their families or dtypes do not fit."""
        one, other = self._dumps.ref.entry(ref), self._dumps.cand.entry(cand)
        families = {one.family, other.family}
        frozen = families == {PARAM, STATE} and _is_state(ref, self._ref_absent) and _is_state(cand, self._cand_absent)
        if len(families) > 1 and TENSOR not in families and not frozen:
            return None
        if not comparable(one.dtype, other.dtype):
            return None
        return self._dumps.tolerance(one.family, one.dtype, other.dtype)

    def agree(self, match: Match) -> bool:
        """Returns whether the two tensors of a plain match have equal values in any layout, whatever statistics say."""
        limit = self.tolerance(match.ref, match.cand)
        return limit is not None and _steps(self._dumps, self._search, (match.ref, match.cand), limit) is not None

    @cached_property
    def _gradients(self) -> tuple[frozenset[str], frozenset[str]]:
        return _gradients(self._dumps.ref), _gradients(self._dumps.cand)

    def of_gradients(self, match: Match) -> bool:
        """Returns whether the gradients of a parameter and its counterpart are equal, and no constants."""
        return split_key(match.ref)[0] == PARAM and self._gradients_agree(match) is True

    def against_gradients(self, match: Match) -> bool:
        """Returns whether both programs have a gradient of a value, and other ones.

        A straight-through estimator returns what it has rounded to, and another gradient arrives at each of the two.
        """
        return split_key(match.ref)[0] == ACTIVATION and self._gradients_agree(match) is False

    def of_other_constants(self, match: Match) -> bool:
        """Returns whether two activations are equal as constants alone, and other gradients arrive at them.

        A state of zeros before a loop, and what the first step makes of it with a bias of zeros, have one value.
        """
        if split_key(match.ref)[0] != ACTIVATION or not is_constant(self.ref_stats(match.ref)):
            return False
        norms = [
            source.entry(source.resolve(gradient)).stats.get("l2", 0.0)
            for source, key in ((self._dumps.ref, match.ref), (self._dumps.cand, match.cand))
            if source.has_tensor(gradient := gradient_key(key))
        ]
        return len(norms) > 1 and not isclose(*map(as_float, norms), rel_tol=_SAME_NORM)

    def _gradients_agree(self, match: Match) -> bool | None:
        """Returns whether the gradients of two tensors agree; None where a program has none, or has a constant."""
        ref, cand = gradient_key(match.ref), gradient_key(match.cand)
        if ref not in self._gradients[0] or cand not in self._gradients[1] or is_constant(self.ref_stats(ref)):
            return None
        return self.recipe(ref, cand) is not None


def measurable(source: DumpSource, keys: Iterable[str]) -> Iterator[str]:
    """Yields the keys of tensors of several elements that a dump has, or has the statistics of."""
    for key in keys:
        entry = source.entry(key)
        if prod(entry.shape) > 1 and entry.alias_of is None and is_measured(source, key):
            yield key


def is_measured(source: DumpSource, key: str) -> bool:
    """Returns whether a dump has a tensor, or what is known of it without its elements."""
    entry = source.entry(source.resolve(key))
    return source.has_tensor(key) or (entry.absent is None and bool(entry.stats))


def absent_keys(source: DumpSource) -> frozenset[str]:
    """Returns the keys whose tensors are absent, themselves or as what they are an alias of."""
    if all(entry.absent is None for entry in source.manifest.entries):
        return frozenset()
    entries = {key_of(entry.family, entry.name): entry for entry in source.manifest.entries}
    return frozenset(
        key for key, entry in entries.items() if entries.get(entry.alias_of or key, entry).absent is not None
    )


def _is_state(key: str, absent: frozenset[str]) -> bool:
    """Returns whether a tensor is state, as is a parameter that the loss has no gradient of, whatever it is called."""
    family, name = split_key(key)
    return family == STATE or key_of(PARAM_GRAD, name) in absent


def is_constant(statistics: Mapping[str, Json]) -> bool:
    """Returns whether all elements of a tensor are the same, by its statistics."""
    return "min" in statistics and statistics["min"] == statistics.get("max")


def _alike(dumps: Dumps, ref: str, cand: str) -> bool:
    """Returns whether two tensors have the same sizes, in any order: constants are equal in every other shape, too.

    An axis of one element is for broadcasting, as that of a scale of channels in `[C, 1, 1]`.
    """
    one, other = (source.entry(key).shape for source, key in ((dumps.ref, ref), (dumps.cand, cand)))
    return sorted(size for size in one if size != 1) == sorted(size for size in other if size != 1)


def _gradients(source: DumpSource) -> frozenset[str]:
    """Returns the keys of the gradients of parameters and values that have tensors or statistics."""
    keys = (key for key in source.keys() if split_key(key)[0] in (PARAM_GRAD, ACTIVATION_GRAD))  # noqa: SIM118 - no mapping
    return frozenset(measurable(source, keys))


def _classes(
    source: DumpSource, statistics: Statistics, absent: frozenset[str], role: str
) -> Callable[[str], ValueClass]:
    """Returns a function from a key to the class of its tensor, which is made once."""

    # No method: its cache would know what knows it, and stay until a search for cycles, 20 MiB for 70,000 tensors.
    @cache
    def class_of(key: str) -> ValueClass:
        entry = source.entry(key)
        frozen = entry.family == PARAM and key_of(PARAM_GRAD, entry.name) in absent
        family = f"frozen {entry.family}" if frozen else entry.family
        # Without a hash a tensor is a class of its own, not that of its name in the other dump; no hash has a slash.
        return family, entry.dtype, entry.shape, statistics(key).get("hash", f"{role}/{key}")

    return class_of


def _statistics(source: DumpSource) -> Statistics:
    """Returns a function from a key to its statistics; those that the dump lacks are computed once, with the hash."""

    @cache
    def statistics(key: str) -> Mapping[str, Json]:
        entry = source.entry(source.resolve(key))
        if entry.stats:
            return entry.stats
        digest = Digest()
        chunks = _hashed(source.chunks(key, reused=True), digest)
        found = stats_of_chunks(chunks, shape=entry.shape, dtype=entry.dtype, tier="core").to_json()
        return {**found, "hash": digest.hexadecimal()}

    return statistics


def _hashed(chunks: Iterable[Array], digest: Digest) -> Iterator[Array]:
    for chunk in chunks:
        digest.add(chunk)
        yield chunk


def _steps(dumps: Dumps, search: LayoutSearch, keys: tuple[str, str], largest: float) -> tuple[RecipeStep, ...] | None:
    """Returns the steps that make a reference's tensor of a candidate's; None where they differ in every layout."""
    ref, cand = keys
    agreeing = search.agreeing(ref, cand)
    if not agreeing:
        return None
    if not (dumps.ref.has_tensor(ref) and dumps.cand.has_tensor(cand)):
        return ()  # statistics show no layout, and other pairs do
    recipe = Recipe(keys=(cand,), steps=agreeing[0].steps(arranged(dumps.cand.entry(cand))))
    one, other = dumps.ref.array(ref), recipe.made_of([dumps.cand.array(cand)])
    dtypes = (source.entry(key).dtype for source, key in ((dumps.ref, ref), (dumps.cand, cand)))
    metrics = measure(block_pairs(blocks(one), blocks(other)), scale_of(*dtypes, rtol=0.0, atol=0.0))
    moved = split_key(ref)[0] == INPUT and has_moved_examples(one, other)
    return recipe.steps if moved or metrics.needed <= largest else None
