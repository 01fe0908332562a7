"""`by_shuffled_layers` matches the output of a packed layer with those of layers that are packed block by block in it.

A layer that packs the query, key and value of each head side by side has in its output the features of one head of each
after the other, where the other program has a layer for all queries, one for all keys, and one for all values. Or one
of several that are joined or stacked has the halves of its heads in another order. The order of the blocks is that of
the parameters (`values.parts.joined.uneven_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import relative_error
from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    RecipeStep,
    Reshape,
    Split,
    Stack,
    Unstack,
    in_order_of_blocks,
)
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.equal_parts import SAME
from gradscope.comparison.pairing.inference.shuffled_blocks import reordered
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.packed.packed_layers import calls_of, outputs_of, paired_parameters
from gradscope.comparison.pairing.values.parts.packed_parameters import Shuffled, shuffled_parameters
from gradscope.comparison.precision import comparable


def by_shuffled_layers(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of activations of which one program has several as one, with their blocks in another order."""
    free = {True: {*unmatched.only_ref}, False: {*unmatched.only_cand}}
    shuffled = list(shuffled_parameters(unmatched.matched))
    if not shuffled or not dumps.ref.manifest.layers or not dumps.cand.manifest.layers:
        return
    outputs = {True: outputs_of(dumps.ref), False: outputs_of(dumps.cand)}
    of_cand, of_ref = paired_parameters(unmatched.matched)
    paired = {True: of_ref, False: of_cand}
    for each in shuffled:
        sides = outputs[each.of_ref], outputs[not each.of_ref], paired[each.of_ref]
        for packed, parts in calls_of({each.packed: each.parts}, *sides):
            alone = packed in free[each.of_ref] and free[not each.of_ref].issuperset(parts)
            if alone:
                free[each.of_ref].discard(packed)
                free[not each.of_ref].difference_update(parts)
                yield from _matches(dumps, each, packed, parts)


def _matches(dumps: Dumps, shuffled: Shuffled, packed: str, parts: Sequence[str]) -> Iterator[Match]:
    """Yields the matches of the output of a packed layer with those of its parts; none where the shapes do not fit."""
    holder, other = (dumps.ref, dumps.cand) if shuffled.of_ref else (dumps.cand, dumps.ref)
    if not all(comparable(holder.entry(packed).dtype, other.entry(part).dtype) for part in parts):
        return
    array, count = holder.array(packed), len(shuffled.blocks)
    stored = {part: other.array(part) for part in parts}
    stacked = _stacked(array, [*stored.values()])
    arrays = {part: _with_heads_merged(each, array.ndim - (stacked is not None)) for part, each in stored.items()}
    merged, apart = _reshaping([*arrays.values()], [*stored.values()])
    joined = {axis: _joined(array, axis, stacked) for axis in reversed(range(array.ndim - (stacked is not None)))}
    cut = {
        axis: reordered(np.concatenate([arrays[part] for part in parts], axis=axis), shuffled.blocks, axis)
        for axis, whole in joined.items()
        if whole.shape[axis] % count == 0 and _fit(whole, arrays, axis)
    }
    agreeing = [axis for axis, made in cut.items() if relative_error(joined[axis], made) <= SAME]
    for axis in (agreeing or [*cut])[:1]:
        matched_by = "fingerprint" if agreeing else "order"
        if shuffled.of_ref:
            stack = () if stacked is None else (Split(axis, len(parts)), Stack(stacked))
            steps = (*merged, Concatenate(axis), *in_order_of_blocks(axis, shuffled.blocks), *stack)
            yield Match(ref=packed, recipe=Recipe(keys=tuple(parts), steps=steps), matched_by=matched_by)
        else:
            inverse = tuple(np.argsort(shuffled.blocks).tolist())
            sizes = tuple(arrays[part].shape[axis] for part in parts)
            whole = () if stacked is None else (Unstack(stacked), Concatenate(axis))
            steps = (*whole, *in_order_of_blocks(axis, inverse), Split(axis, sizes), *apart)
            for number, part in enumerate(parts):
                yield Match(ref=part, recipe=Recipe(keys=(packed,), steps=steps, part=number), matched_by=matched_by)


def _stacked(array: Array, parts: Sequence[Array]) -> int | None:
    """Returns the axis along which an output has its parts stacked; None where it has them joined."""
    axes = (axis for axis, size in enumerate(array.shape) if size == len(parts))
    return next(
        (axis for axis in axes if all(np.delete(array.shape, axis).tolist() == [*each.shape] for each in parts)), None
    )


def _joined(array: Array, axis: int, stacked: int | None) -> Array:
    """Returns an output with its parts joined along an axis, which may be stacked in it."""
    return array if stacked is None else np.concatenate(list(np.moveaxis(array, stacked, 0)), axis)


def _with_heads_merged(array: Array, rank: int) -> Array:
    """Returns an output that has an axis more, for the heads, with that merged into the last one."""
    return array.reshape(*array.shape[:-2], -1) if array.ndim == rank + 1 else array


def _reshaping(
    merged: Sequence[Array], stored: Sequence[Array]
) -> tuple[tuple[RecipeStep, ...], tuple[RecipeStep, ...]]:
    """Returns the steps that merge the heads of all parts, and those that set them apart; none where none has any."""
    one, other = merged[0].shape, stored[0].shape
    return ((Reshape(one),), (Reshape(other),)) if one != other else ((), ())


def _fit(array: Array, arrays: Mapping[str, Array], axis: int) -> bool:
    """Returns whether joined along an axis, the parts have the shape of the packed output."""
    rest = [np.delete(each.shape, axis).tolist() for each in (array, *arrays.values()) if each.ndim == array.ndim]
    total = sum(each.shape[axis] for each in arrays.values() if each.ndim == array.ndim)
    return len(rest) == len(arrays) + 1 and all(each == rest[0] for each in rest) and total == array.shape[axis]
