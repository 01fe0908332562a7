"""`with_means_of_parts` pairs what a batch has one of, as its loss in a layer, with those of its parts.

A program that runs over parts of the batch has a mean, or a sum, over each part. That of the whole batch is their mean,
in which parts count by their sizes, or their sum, and it is no part's. What arrives at the whole, going backwards, is
then the sum of what arrives at the parts, or what arrives at each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from gradscope.comparison.layout.recipe_steps import Concatenate, Mean, Reshape, Split, Stack, Sum
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.batch_parts import BatchParts, batch_parts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key

#: The sizes of the parts of a batch where those are not equal, by their number.
_Sizes: TypeAlias = Mapping[int, tuple[int, ...]]


def with_means_of_parts(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with the means over a batch, and their gradients, paired with those over its parts.

    Args:
        dumps: The dumps.
        pairing: Their pairing, in which other values of the batch are paired with those of its parts.
    """
    if not any(each.matched_by == "iterations" for each in pairing.matched):
        return pairing
    sizes = dict(_unequal_sizes(dumps, pairing.matched))
    stated = [each for each in pairing.matched if each.matched_by in ("map", "shards")]
    shards = [each for each in pairing.inverse if each.matched_by == "shards"]
    refs = frozenset(dumps.ref.keys()).difference((each.ref for each in stated), *(each.recipe.keys for each in shards))
    cands = frozenset(dumps.cand.keys()).difference(
        (each.ref for each in shards), *(each.recipe.keys for each in stated)
    )
    found: tuple[list[Match], list[Match]] = [], []
    for parts in batch_parts(dumps, dumps.ref.keys(), dumps.cand.keys(), partial(_error, sizes)):
        own, others = (refs, cands) if parts.of_ref else (cands, refs)
        found[not parts.of_ref].extend(
            each for each in _matches(parts, sizes) if each.ref in own and others.issuperset(each.recipe.keys)
        )
    of_ref, of_cand = found
    used = Pairing.of(dumps, of_ref, of_cand)
    free = frozenset(used.only_ref), frozenset(used.only_cand)
    others = [each for each in pairing.matched if each.ref in free[0] and free[1].issuperset(each.recipe.keys)]
    return Pairing.of(dumps, [*others, *of_ref], [*pairing.inverse, *of_cand])


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


def _error(sizes: _Sizes, parts: BatchParts) -> float:
    """Returns how far a value is from what its parts make; inf where they have other shapes or dtypes."""
    entry, others = parts.holder.entry(parts.whole), [parts.other.entry(part) for part in parts.parts]
    alike = all(each.dtype == entry.dtype for each in others) and dtype_class(entry.dtype) == "float"
    single = {each.shape for each in others} == {entry.shape}
    return min(_distances(parts, sizes)) if alike and (single or _is_stacked(parts)) else math.inf


def _is_stacked(parts: BatchParts) -> bool:
    """Returns whether one tensor has all parts along its first axis."""
    (first, *others) = parts.part_shapes
    return not others and first[:1] > (1,) and first[1:] == parts.shape


def _distances(parts: BatchParts, sizes: _Sizes) -> tuple[float, float]:
    """Returns how far the mean of a value is from that of its parts, and from their sum; 0 where it is not known."""
    whole, *others = (
        as_float(source.entry(source.resolve(key)).stats.get("mean", math.nan))
        for source, keys in ((parts.holder, (parts.whole,)), (parts.other, parts.parts))
        for key in keys
    )
    others = others * parts.part_shapes[0][0] if _is_stacked(parts) else others
    weights = sizes.get(len(others), (1,) * len(others))
    mean = sum(weight * other for weight, other in zip(weights, others, strict=True)) / sum(weights)
    of_mean, of_sum = abs(whole - mean), abs(whole - sum(others))
    return (of_mean, of_sum) if math.isfinite(of_mean + of_sum) else (0.0, 0.0)


def _matches(found: BatchParts, sizes: _Sizes) -> Iterator[Match]:
    """Yields the pair of a value with its parts, and that of their gradients; the parts are keys of the other dump."""
    of_mean, of_sum = _distances(found, sizes)
    mean = Mean(0, sizes.get(len(found.parts), ()))
    of_values, of_gradients = (mean, Sum(0)) if of_mean <= of_sum else (Sum(0), Mean(0))
    stacking = () if _is_stacked(found) else (Stack(0),)
    for family, reduced in ((ACTIVATION, of_values), (ACTIVATION_GRAD, of_gradients)):
        keys = tuple(key_of(family, split_key(part)[1]) for part in found.parts)
        recipe = Recipe(keys=keys, steps=(*stacking, reduced, Reshape(found.shape)))
        yield Match(ref=key_of(family, split_key(found.whole)[1]), recipe=recipe, matched_by="iterations")
