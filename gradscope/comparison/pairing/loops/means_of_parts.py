"""`with_means_of_parts` pairs what a batch has one of, as its loss in a layer, with those of its parts.

A program that runs over parts of the batch has a mean, or a sum, over each part. That of the whole batch is their mean,
or their sum, and it is no part's. What arrives at the whole, going backwards, is then the sum of what arrives at the
parts, or what arrives at each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradscope.comparison.layout.recipe_steps import Mean, Reshape, Stack, Sum
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.batch_parts import BatchParts, batch_parts
from gradscope.comparison.pairing.loops.micro_batches import is_of_parts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key


def with_means_of_parts(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with the means over a batch, and their gradients, paired with those over its parts.

    Args:
        dumps: The dumps.
        pairing: Their pairing, in which other values of the batch are paired with those of its parts.
    """
    if not any(map(is_of_parts, pairing.matched)):
        return pairing
    stated = [each for each in pairing.matched if each.matched_by in ("map", "shards")]
    shards = [each for each in pairing.inverse if each.matched_by == "shards"]
    refs = frozenset(dumps.ref.keys()).difference((each.ref for each in stated), *(each.recipe.keys for each in shards))
    cands = frozenset(dumps.cand.keys()).difference(
        (each.ref for each in shards), *(each.recipe.keys for each in stated)
    )
    found: tuple[list[Match], list[Match]] = [], []
    for parts in batch_parts(dumps, dumps.ref.keys(), dumps.cand.keys(), _error):
        own, others = (refs, cands) if parts.of_ref else (cands, refs)
        found[not parts.of_ref].extend(
            each for each in _matches(parts) if each.ref in own and others.issuperset(each.recipe.keys)
        )
    of_ref, of_cand = found
    used = Pairing.of(dumps, of_ref, of_cand)
    free = frozenset(used.only_ref), frozenset(used.only_cand)
    others = [each for each in pairing.matched if each.ref in free[0] and free[1].issuperset(each.recipe.keys)]
    return Pairing.of(dumps, [*others, *of_ref], [*pairing.inverse, *of_cand])


def _error(parts: BatchParts) -> float:
    """Returns how far a value is from what its parts make; inf where they have other shapes or dtypes."""
    entries = [parts.other.entry(part) for part in parts.parts]
    entry = parts.holder.entry(parts.whole)
    alike = all((each.shape, each.dtype) == (entry.shape, entry.dtype) for each in entries)
    return min(_distances(parts)) if alike and dtype_class(entry.dtype) == "float" else math.inf


def _distances(parts: BatchParts) -> tuple[float, float]:
    """Returns how far the mean of a value is from that of its parts, and from their sum; 0 where it is not known."""
    whole, *others = (
        as_float(source.entry(source.resolve(key)).stats.get("mean", math.nan))
        for source, keys in ((parts.holder, (parts.whole,)), (parts.other, parts.parts))
        for key in keys
    )
    of_mean, of_sum = abs(whole - sum(others) / len(others)), abs(whole - sum(others))
    return (of_mean, of_sum) if math.isfinite(of_mean + of_sum) else (0.0, 0.0)


def _matches(found: BatchParts) -> Iterator[Match]:
    """Yields the pair of a value with its parts, and that of their gradients; the parts are keys of the other dump."""
    of_mean, of_sum = _distances(found)
    of_values, of_gradients = (Mean(0), Sum(0)) if of_mean <= of_sum else (Sum(0), Mean(0))
    shape = found.holder.entry(found.whole).shape
    for family, reduced in ((ACTIVATION, of_values), (ACTIVATION_GRAD, of_gradients)):
        keys = tuple(key_of(family, split_key(part)[1]) for part in found.parts)
        recipe = Recipe(keys=keys, steps=(Stack(0), reduced, Reshape(shape)))
        yield Match(ref=key_of(family, split_key(found.whole)[1]), recipe=recipe, matched_by="iterations")
