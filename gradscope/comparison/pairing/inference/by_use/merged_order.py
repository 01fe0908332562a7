"""`with_positions_in_order` compares positions that are merged into one axis in the order in which they are used.

The patches of an image are merged into one axis row by row. Where a program has them column by column, the values agree
in a layout, but what is computed from them does not: that is a fault, and no layout. So values whose positions are
merged in another order are compared in order, where the programs compare values behind them, and none of those agrees.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul

from gradscope.comparison.layout.layouts import relative_error
from gradscope.comparison.layout.recipe_steps import RecipeStep, Reshape, Transpose
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.layer_graph import NearestKeys, inverted, sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, is_gradient, key_of, split_key


def with_positions_in_order(dumps: Dumps, matches: Sequence[Match]) -> tuple[Match, ...]:
    """Returns the matches, those whose merged positions nothing uses in another order with them in order.

    Args:
        dumps: The dumps of the matches.
        matches: The matches, with their layouts.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    in_order = {
        match: steps
        for match in matches
        if match.matched_by == "fingerprint"
        and split_key(match.ref)[0] == ACTIVATION
        and (steps := _in_order(dumps.cand.entry(match.cand).shape, match.recipe.steps)) is not None
    }
    if not in_order:
        return tuple(matches)
    known = {dumps.ref.resolve(each.ref): each for each in matches if split_key(each.ref)[0] == ACTIVATION}
    sources = sources_of(dumps.ref.manifest.layers).items()
    graph = inverted({key: made_of for key, made_of in sources if not is_gradient(split_key(key)[0])})
    readers = NearestKeys(graph, known)
    found: dict[str, tuple[RecipeStep, ...]] = {}
    for match, steps in in_order.items():
        compared = readers.behind(dumps.ref.resolve(match.ref))
        if compared and not any(_agrees(dumps, known[key]) for key in compared):
            found |= {match.ref: steps, key_of(ACTIVATION_GRAD, split_key(match.ref)[1]): steps}
    return tuple(
        replace(match, recipe=replace(match.recipe, steps=found[match.ref]), matched_by="order")
        if match.ref in found and match.recipe.steps
        else match
        for match in matches
    )


def _in_order(shape: tuple[int, ...], steps: Sequence[RecipeStep]) -> tuple[RecipeStep, ...] | None:
    """Returns steps that split an axis of positions in order; None where steps do so, or split none.

    The last axis is left alone, because channels are merged with positions in either order.
    """
    if len(steps) != 2 or not isinstance(steps[0], Reshape) or not isinstance(steps[1], Transpose):
        return None
    split, axes = steps[0].shape, steps[1].axes
    bounds, ends = list(accumulate(shape, mul)), list(accumulate(split, mul))
    merged: defaultdict[int, list[int]] = defaultdict(list)
    for axis, end in enumerate(ends):
        merged[next(number for number, bound in enumerate(bounds) if end <= bound)].append(axis)
    places = {axis: place for place, axis in enumerate(axes)}
    arranged, order = list(split), list(axes)
    for group in (group for merged_axis, group in merged.items() if merged_axis < len(shape) - 1):
        used = sorted(places[axis] for axis in group)
        for axis, place in zip(group, used, strict=True):
            arranged[axis], order[place] = split[axes[place]], axis
    if tuple(order) == axes:
        return None
    in_order = order == sorted(order)
    return (Reshape(tuple(arranged)), *(() if in_order else (Transpose(tuple(order)),)))


def _agrees(dumps: Dumps, match: Match) -> bool:
    if match.matched_by == "fingerprint":
        return True
    entries = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if not (dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))):
        return False
    one, other = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    tolerance = dumps.tolerance(ACTIVATION, *(each.dtype for each in entries))
    return one.shape == other.shape and math.prod(one.shape) > 0 and relative_error(one, other) <= tolerance
