"""`with_read_slices` pairs a value with the slice of it that the loss reads, where the other program computes no more.

A model that classifies by the first token may normalise every token and then take the first, or take it first. Both are
one function. So is a network of graphs that are padded to one size, whose other nodes and edges the loss does not read,
inputs included. What of a value is read its gradient shows, which is zero elsewhere: no values are looked at, so that a
program that takes another slice differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipe_steps import RecipeStep, Reshape, Split
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import comparable, dtype_class
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, gradient_key, split_key, value_family

#: The family of a value, and its names in both dumps.
_Names: TypeAlias = tuple[str, str, str]

#: The families of the values that a program may have more of, and of their gradients.
_VALUES: Final = (ACTIVATION, INPUT)
_GRADIENTS: Final = (ACTIVATION_GRAD, INPUT_GRAD)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A `_Slice` says which part of the larger of two values the other one is.

    Attributes:
        of_ref: Whether the reference has the larger one.
        recipe: What makes it of the larger one, whose key it has.
    """

    of_ref: bool
    recipe: Recipe


def with_read_slices(dumps: Dumps, matches: Sequence[Match]) -> tuple[tuple[Match, ...], tuple[Match, ...]]:
    """Returns the matches with recipes of the slices that are read, and inverse ones where the reference has more.

    Args:
        dumps: The dumps of the matches.
        matches: The matches, with their layouts.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    pairs = {_names(match): match for match in matches if split_key(match.ref)[0] in _GRADIENTS}
    slices = dict(_slices(dumps, matches, pairs))
    kept: list[Match] = []
    inverse: list[Match] = []
    for match in matches:
        family, found = split_key(match.ref)[0], slices.get(_names(match))
        if found is None or family not in (*_VALUES, *_GRADIENTS):
            kept.append(match)
        elif found.of_ref:
            inverse.append(replace(match, ref=match.cand, recipe=replace(found.recipe, keys=(match.ref,))))
        else:
            kept.append(replace(match, recipe=replace(found.recipe, keys=(match.cand,))))
    return tuple(kept), tuple(inverse)


def _slices(
    dumps: Dumps, matches: Sequence[Match], gradients: Mapping[_Names, Match]
) -> Iterator[tuple[_Names, _Slice]]:
    for match in matches:
        gradient = gradients.get(_names(match))
        if split_key(match.ref)[0] not in _VALUES or match.matched_by == "map" or gradient is None:
            continue
        if match.recipe.plain and gradient.recipe.plain and (found := _slice(dumps, match)) is not None:
            yield _names(match), found


def _slice(dumps: Dumps, match: Match) -> _Slice | None:
    """Returns which slice of one value the other one is; None where it is none, and where both have one size."""
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if not comparable(one.dtype, other.dtype) or dtype_class(other.dtype) != "float":
        return None
    of_ref = math.prod(one.shape) > math.prod(other.shape)
    (source, key), large, small = (
        ((dumps.ref, match.ref), one.shape, other.shape)
        if of_ref
        else ((dumps.cand, match.cand), other.shape, one.shape)
    )
    gradient = gradient_key(key)
    if not _may_be_slice(large, small) or not source.has_tensor(gradient):
        return None
    steps = _steps(source.array(gradient), small)
    return None if steps is None else _Slice(of_ref, Recipe(keys=(key,), steps=steps[0], part=steps[1]))


def _may_be_slice(large: Shape, small: Shape) -> bool:
    """Returns whether a shape may be that of a slice of a larger one, with or without axes of one element."""
    if math.prod(large) <= math.prod(small) or not small:
        return False
    sizes = iter(large)
    return all(any(size <= own for own in sizes) for size in small)


def _steps(gradient: Array, small: Shape) -> tuple[tuple[RecipeStep, ...], int] | None:
    """Returns the steps that cut out what is read, and which result it is; None where that has another shape."""
    read = gradient != 0
    if not read.any():
        return None
    steps: list[Split] = []
    cut: list[int] = []
    part = 0
    for axis, size in enumerate(gradient.shape):
        indices = np.flatnonzero(read.any(axis=tuple(each for each in range(read.ndim) if each != axis)))
        first, end = int(indices[0]), int(indices[-1]) + 1
        cut.append(end - first)
        if cut[-1] == 1 < size:
            steps.append(Split(axis, size))
            part = part * size + first
        elif cut[-1] < size:
            sizes = tuple(each for each in (first, end - first, size - end) if each)
            steps.append(Split(axis, sizes))
            part = part * len(sizes) + (first > 0)
    if [each for each in cut if each > 1] != [each for each in small if each > 1] or not steps:
        return None
    if tuple(cut) == small:
        return tuple(steps), part
    # Each result takes on the shape, which those of a cut into parts of several sizes cannot.
    return None if any(not isinstance(each.into, int) for each in steps) else ((*steps, Reshape(small)), part)


def _names(match: Match) -> _Names:
    family, name = split_key(match.ref)
    return value_family(family) or family, name, split_key(match.cand)[1]
