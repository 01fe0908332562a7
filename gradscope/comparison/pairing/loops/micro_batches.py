"""`by_micro_batches` matches the values of a batch with those of its parts.

Joined along the axis of the examples, the values that a program has of parts of the batch are those of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradscope.comparison.layout.recipe_steps import Concatenate, Split
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.batch_parts import BatchParts, batch_parts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION_GRAD, key_of, split_key


def by_micro_batches(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of activations and their gradients with those of the parts of the batch."""
    if unmatched.only_ref == unmatched.only_cand:
        return
    free = frozenset(unmatched.only_ref), frozenset(unmatched.only_cand)
    for found in batch_parts(dumps, unmatched.only_ref, unmatched.only_cand, _error):
        axis = _axis(found)
        for match in () if axis is None else _matches(found, axis):
            yield match
            gradients = _of_gradients(match)
            if gradients.ref in free[0] and free[1].issuperset(gradients.recipe.keys):
                yield gradients


def is_of_parts(match: Match) -> bool:
    """Returns whether a match is one of a batch with its parts."""
    return match.matched_by == "iterations" and any(
        isinstance(each, Concatenate | Split) for each in match.recipe.steps
    )


def _error(parts: BatchParts) -> float:
    """Returns the difference of the sums of squares; inf where the sizes of the parts do not add up, 0 unless known."""
    if _axis(parts) is None:
        return math.inf
    difference = abs(_power(parts.holder, [parts.whole]) - _power(parts.other, parts.parts))
    return difference if math.isfinite(difference) else 0.0


def _power(source: DumpSource, keys: Sequence[str]) -> float:
    entries = [source.entry(source.resolve(key)) for key in keys]
    return sum(as_float(each.stats.get("rms", math.nan)) ** 2 * math.prod(each.shape) for each in entries)


def _axis(parts: BatchParts) -> int | None:
    """Returns the axis along which the parts joined have the shape of the whole; None for none."""
    shape, shapes = parts.holder.entry(parts.whole).shape, [parts.other.entry(part).shape for part in parts.parts]
    if any(len(each) != len(shape) for each in shapes):
        return None
    for axis, size in enumerate(shape):
        rest = (*shape[:axis], *shape[axis + 1 :])
        alike = all((*each[:axis], *each[axis + 1 :]) == rest for each in shapes)
        if alike and sum(each[axis] for each in shapes) == size:
            return axis
    return None


def _matches(found: BatchParts, axis: int) -> Iterator[Match]:
    if found.of_ref:
        recipe = Recipe(keys=found.parts, steps=(Concatenate(axis),))
        yield Match(ref=found.whole, recipe=recipe, matched_by="iterations")
        return
    sizes = tuple(found.other.entry(part).shape[axis] for part in found.parts)
    steps = (Split(axis, len(sizes) if len({*sizes}) == 1 else sizes),)
    for number, part in enumerate(found.parts):
        yield Match(ref=part, recipe=Recipe(keys=(found.whole,), steps=steps, part=number), matched_by="iterations")


def _of_gradients(match: Match) -> Match:
    """Returns the match of the gradients of the values of a match."""
    keys = tuple(key_of(ACTIVATION_GRAD, split_key(key)[1]) for key in match.recipe.keys)
    recipe = Recipe(keys=keys, steps=match.recipe.steps, part=match.recipe.part)
    return Match(ref=key_of(ACTIVATION_GRAD, split_key(match.ref)[1]), recipe=recipe, matched_by=match.matched_by)
