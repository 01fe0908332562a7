"""`by_micro_batches` matches the values of a batch with those of its parts.

Joined along the axis of the examples, the values that a program has of parts of the batch are those of the whole batch.
All are joined in one order: that in which the first value whose examples are distinct is equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.example_orders import Order, order_of_examples
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.batch_parts import (
    BatchParts,
    LayerNames,
    PartsRule,
    batch_parts,
    renamed_layers,
)
from gradscope.comparison.pairing.loops.joined_parts import PartJoin, part_joins
from gradscope.comparison.pairing.loops.split_batches import by_split_batches
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION_GRAD, INPUT, key_of, split_key
from gradscope.naming.paths import loops_around, without_occurrence
from gradscope.protocols import implements

#: The shape of a value, of which numbers it is, and whether it is of a loop with iterations.
_Kind: TypeAlias = tuple[Shape, str, bool]

#: The most values whose examples are read for their order.
_MOST_READ: Final = 8


def by_micro_batches(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of activations and their gradients with those of the parts of the batch."""
    if unmatched.only_ref != unmatched.only_cand or not _have_equal_shapes(dumps, unmatched.only_ref):
        yield from _of_layers(dumps, unmatched)


def by_renamed_micro_batches(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields the same of layers that have other names, and parameters that are paired."""
    if any("#" in key or "[" in key for key in (*unmatched.only_ref, *unmatched.only_cand)):
        renamed = renamed_layers(dumps, unmatched.matched)
        yield from by_split_batches(dumps, unmatched, renamed)
        yield from _of_layers(dumps, unmatched, renamed)


def _of_layers(dumps: Dumps, unmatched: Pairing, renamed: LayerNames | None = None) -> Iterator[Match]:
    loops = _loops(unmatched.only_ref) | _loops(unmatched.only_cand)
    found = list(batch_parts(dumps, unmatched.only_ref, unmatched.only_cand, _SumsOfSquares(loops=loops), renamed))
    proven = _proven_order(dumps, found)
    free = frozenset(unmatched.only_ref), frozenset(unmatched.only_cand)
    for parts in found:
        for match in _matches(parts, proven):
            yield match
            gradients = _of_gradients(match)
            if gradients.ref in free[0] and free[1].issuperset(gradients.recipe.keys):
                yield gradients


def _have_equal_shapes(dumps: Dumps, keys: Sequence[str]) -> bool:
    return all(dumps.ref.entry(key).shape == dumps.cand.entry(key).shape for key in keys)


def _loops(keys: Sequence[str]) -> set[str]:
    """Returns the paths of the loops that have iterations."""
    names = (split_key(key)[1] for key in keys if "[" in key)
    return {without_occurrence(loop) for name in names for loop in loops_around(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _SumsOfSquares:
    """_SumsOfSquares adds up the squares of the values of parts, which are joined along an axis.

    Attributes:
        loops: The paths of the loops that have iterations.
    """

    loops: AbstractSet[str]

    @implements(PartsRule)
    def kind(self, source: DumpSource, key: str) -> _Kind:
        # What a scan stacks of its iterations is an output of the loop, and no batch.
        path = without_occurrence(split_key(key)[1])
        entry = source.entry(key)
        return entry.shape, dtype_class(entry.dtype), not self.loops.isdisjoint((path, path.rpartition(".")[0]))

    @implements(PartsRule)
    def fits(self, whole: _Kind, parts: Sequence[_Kind]) -> bool:
        shape, _, of_loop = whole
        if len({numbers for _, numbers, _ in parts}) > 1:
            return False
        join = next(part_joins(shape, [each for each, _, _ in parts]), None)
        return join is not None and not (join.whole and of_loop)

    @implements(PartsRule)
    def amount(self, source: DumpSource, key: str) -> float:
        entry = source.entry(source.resolve(key))
        return as_float(entry.stats.get("rms", math.nan)) ** 2 * math.prod(entry.shape)

    @implements(PartsRule)
    def errors(self, wholes: Array, parts: Array) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            differences = np.abs(wholes - parts.sum(1))
        return np.where(np.isfinite(differences), differences, 0.0)


def _proven_order(dumps: Dumps, found: Sequence[BatchParts]) -> tuple[Order, PartJoin] | None:
    """Returns the order of the examples of parts that are joined in turn, and how; None where no values prove it."""
    examples = max((each.shape[0] for each in dumps.ref.manifest.entries if each.family == INPUT and each.shape),
                   default=0)  # fmt: skip
    for parts in islice(filter(_has_tensors, found), _MOST_READ):
        whole, arrays = parts.holder.array(parts.whole), [parts.other.array(part) for part in parts.parts]
        for join in part_joins(parts.shape, parts.part_shapes):
            order = order_of_examples(whole, _joined(arrays, join), join.axis, examples)
            if order is not None:
                return order, join
    return None


def _has_tensors(parts: BatchParts) -> bool:
    entries = [parts.holder.entry(parts.whole), *(parts.other.entry(part) for part in parts.parts)]
    return _are_stored(parts) and {dtype_class(each.dtype) for each in entries} == {"float"}


def _are_stored(parts: BatchParts) -> bool:
    return parts.holder.has_tensor(parts.whole) and all(map(parts.other.has_tensor, parts.parts))


def _joined(arrays: Sequence[Array], join: PartJoin) -> Array:
    (made,) = reduce(lambda made, step: step.apply(made), join.joining(()), [*arrays])
    return made


def _matches(found: BatchParts, proven: tuple[Order, PartJoin] | None) -> Iterator[Match]:
    order, known = proven or ((), None)
    joins = list(part_joins(found.shape, found.part_shapes))
    if len(found.parts) == 1:  # a value of another shape is one of parts only where values prove that there are any
        joins = [each for each in joins if known and each.stacked == known.stacked and each.count == known.count]
    for join in [_likeliest(found, joins, order)] if joins else ():
        if found.of_ref:
            recipe = Recipe(keys=found.parts, steps=join.joining(order))
            yield Match(ref=found.whole, recipe=recipe, matched_by="iterations")
            continue
        steps = join.parting(order)
        for number, part in enumerate(found.parts):
            yield Match(ref=part, recipe=Recipe(keys=(found.whole,), steps=steps, part=number), matched_by="iterations")


def _likeliest(found: BatchParts, joins: Sequence[PartJoin], order: Order) -> PartJoin:
    """Returns the join that makes the value, of those that its shape leaves; the first where no values decide."""
    if len(joins) == 1 or not _are_stored(found):
        return joins[0]
    whole, arrays = found.holder.array(found.whole), [found.other.array(part) for part in found.parts]

    def error(join: PartJoin) -> float:
        (made,) = reduce(lambda made, step: step.apply(made), join.joining(order), [*arrays])
        with np.errstate(invalid="ignore"):
            apart = np.subtract(made, whole, dtype=np.result_type(made, whole, np.float64))
        return float(np.linalg.norm(np.where(np.isnan(apart), 0.0, apart)))  # NaN where both have it, or infinities

    return min(joins, key=error)


def _of_gradients(match: Match) -> Match:
    """Returns the match of the gradients of the values of a match."""
    keys = tuple(key_of(ACTIVATION_GRAD, split_key(key)[1]) for key in match.recipe.keys)
    recipe = Recipe(keys=keys, steps=match.recipe.steps, part=match.recipe.part)
    return Match(ref=key_of(ACTIVATION_GRAD, split_key(match.ref)[1]), recipe=recipe, matched_by=match.matched_by)
