"""`with_means_of_parts` pairs what a batch has one of, as its loss in a layer, with those of its parts.

A program that runs over parts of the batch has a mean, or a sum, over each part. That of the whole batch is their mean,
in which parts count by their sizes, or their sum, and it is no part's. What arrives at the whole, going backwards, is
then the sum of what arrives at the parts, or what arrives at each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipe_steps import Concatenate, Mean, Reshape, Split, Stack, Sum, Unstack
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.batch_parts import BatchParts, PartsRule, batch_parts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, names_of_operations
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key
from gradscope.protocols import implements

#: Shape and dtype.
_Kind: TypeAlias = tuple[Shape, str]

#: The sizes of the parts of a batch where those are not equal, by their number.
_Sizes: TypeAlias = Mapping[int, tuple[int, ...]]


def with_means_of_parts(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with the means over a batch, and their gradients, paired with those over its parts.

    Args:
        dumps: The dumps.
        pairing: Their pairing, in which other values of the batch are paired with those of its parts.
    """
    if not any(_is_of_parts(dumps, each) for each in pairing.matched):
        return pairing
    means = _Means(sizes=dict(_unequal_sizes(dumps, pairing.matched)))
    stated = [each for each in pairing.matched if each.matched_by in ("map", "shards")]
    shards = [each for each in pairing.inverse if each.matched_by == "shards"]
    refs = frozenset(dumps.ref.keys()).difference((each.ref for each in stated), *(each.recipe.keys for each in shards))
    cands = frozenset(dumps.cand.keys()).difference(
        (each.ref for each in shards), *(each.recipe.keys for each in stated)
    )
    found: tuple[list[Match], list[Match]] = [], []
    for parts in batch_parts(dumps, _without_operations(dumps.ref), _without_operations(dumps.cand), means):
        own, others = (refs, cands) if parts.of_ref else (cands, refs)
        found[not parts.of_ref].extend(
            each for each in _matches(parts, means) if each.ref in own and others.issuperset(each.recipe.keys)
        )
    of_ref, of_cand = found
    used = Pairing.of(dumps, of_ref, of_cand)
    free = frozenset(used.only_ref), frozenset(used.only_cand)
    others = [each for each in pairing.matched if each.ref in free[0] and free[1].issuperset(each.recipe.keys)]
    return Pairing.of(dumps, [*others, *of_ref], [*pairing.inverse, *of_cand])


def _is_of_parts(dumps: Dumps, match: Match) -> bool:
    """Returns whether a value is paired with several of the other program, with a part of one, or with stacked parts.

    Other reshapes, as of heads that one program has side by side, say nothing of a batch.
    """
    if match.matched_by != "iterations":
        return False
    if len(match.recipe.keys) > 1 or any(isinstance(step, Split | Unstack) for step in match.recipe.steps):
        return True
    shapes = dumps.ref.entry(match.ref).shape, dumps.cand.entry(match.cand).shape
    whole, stacked = sorted(shapes, key=len)
    return (math.prod(stacked[:2]), *stacked[2:]) == whole != stacked


def _without_operations(source: DumpSource) -> tuple[str, ...]:
    """Returns the keys without those of operations: the second `sub` of a scope is no second call of the first."""
    names = names_of_operations(source)
    return tuple(key for key in source.keys() if split_key(key)[1] not in names)  # noqa: SIM118 - no mapping


def _unequal_sizes(dumps: Dumps, matches: Iterable[Match]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields the numbers of unequal parts of which values are joined, or into which they are split, with the sizes."""
    for recipe in (match.recipe for match in matches if match.matched_by == "iterations" and match.recipe.steps):
        sizes: tuple[int, ...] = ()
        if isinstance(recipe.steps[0], Concatenate):
            sizes = tuple(dumps.cand.entry(key).shape[recipe.steps[0].axis] for key in recipe.keys)
        elif isinstance(recipe.steps[-1], Split) and not isinstance(recipe.steps[-1].into, int):
            sizes = recipe.steps[-1].into
        if len({*sizes}) > 1:
            yield len(sizes), tuple(size // math.gcd(*sizes) for size in sizes)


def _kind(source: DumpSource, key: str) -> _Kind:
    entry = source.entry(key)
    return entry.shape, entry.dtype


def _mean(source: DumpSource, key: str) -> float:
    return as_float(source.entry(source.resolve(key)).stats.get("mean", math.nan))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    """_Means takes the mean of the means of parts, or their sum, where parts have the shape of the whole.

    Attributes:
        sizes: The sizes of the parts where those are not equal, by their number.
    """

    sizes: _Sizes

    @implements(PartsRule)
    def kind(self, source: DumpSource, key: str) -> _Kind:
        return _kind(source, key)

    @implements(PartsRule)
    def fits(self, whole: _Kind, parts: Sequence[_Kind]) -> bool:
        return dtype_class(whole[1]) == "float" and ({*parts} == {whole} or _is_stacked(whole, parts))

    @implements(PartsRule)
    def amount(self, source: DumpSource, key: str) -> float:
        return _mean(source, key)

    @implements(PartsRule)
    def errors(self, wholes: Array, parts: Array) -> Array:
        return np.minimum(*self.distances(wholes, parts))

    def distances(self, wholes: Array, parts: Array) -> tuple[Array, Array]:
        """Returns how far values, `[n]`, are from the means of their parts, `[n, parts]`, and from their sums; 0 where
        that is not known.
        """
        weights = np.array(self.sizes.get(parts.shape[1], (1,) * parts.shape[1]))
        with np.errstate(invalid="ignore", over="ignore"):
            of_mean = np.abs(wholes - parts @ weights / weights.sum())
            of_sum = np.abs(wholes - parts.sum(1))
            known = np.isfinite(of_mean + of_sum)
        return np.where(known, of_mean, 0.0), np.where(known, of_sum, 0.0)


def _is_stacked(whole: _Kind, parts: Sequence[_Kind]) -> bool:
    """Returns whether one tensor has all parts along its first axis."""
    ((shape, dtype), *others) = parts
    return not others and shape[:1] > (1,) and (shape[1:], dtype) == whole


def _matches(found: BatchParts, means: _Means) -> Iterator[Match]:
    """Yields the pair of a value with its parts, and that of their gradients; the parts are keys of the other dump."""
    kinds = [_kind(found.other, part) for part in found.parts]
    is_stacked = _is_stacked(_kind(found.holder, found.whole), kinds)
    count = kinds[0][0][0] if is_stacked else 1
    parts = np.array([[_mean(found.other, part) for part in found.parts] * count])
    of_mean, of_sum = means.distances(np.array([_mean(found.holder, found.whole)]), parts)
    mean = Mean(0, means.sizes.get(len(found.parts), ()))
    of_values, of_gradients = (mean, Sum(0)) if of_mean.item() <= of_sum.item() else (Sum(0), Mean(0))
    stacking = () if is_stacked else (Stack(0),)
    for family, reduced in ((ACTIVATION, of_values), (ACTIVATION_GRAD, of_gradients)):
        keys = tuple(key_of(family, split_key(part)[1]) for part in found.parts)
        recipe = Recipe(keys=keys, steps=(*stacking, reduced, Reshape(found.shape)))
        yield Match(ref=key_of(family, split_key(found.whole)[1]), recipe=recipe, matched_by="iterations")
