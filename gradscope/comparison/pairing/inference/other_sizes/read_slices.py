"""`with_read_slices` pairs a value with the slice of it that the loss reads, where the other program computes no more.

A model that classifies by the first token may normalise every token and then take the first, or take it first. Both are
one function. So is a network of graphs that are padded to one size, whose other nodes and edges the loss does not read,
inputs included, and a convolution that is padded at both ends, whose results at one end are cut off, with one that is
padded at the other end alone. What of a value is read its gradient shows, which is zero elsewhere: no values say which
slice it is, so that a program that takes another one differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import permutations
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.example_orders import Order
from gradscope.comparison.layout.layouts import AxisLayout, Shape, agreeing_layouts, differ_by_ones
from gradscope.comparison.layout.recipe_steps import RecipeStep, Reshape, Split, Transpose
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.example_order import in_order
from gradscope.comparison.pairing.inference.layout_search import likeliness
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import comparable, dtype_class
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, gradient_key, split_key, value_family

#: The family of a value, and its names in both dumps.
_Names: TypeAlias = tuple[str, str, str]

#: The families of the values that a program may have more of, and of their gradients.
_VALUES: Final = (ACTIVATION, INPUT)
_GRADIENTS: Final = (ACTIVATION_GRAD, INPUT_GRAD)

#: The largest number of axes whose orders are tried.
_MOST_AXES: Final = 6


@dataclass(frozen=True, slots=True)
class _Slice:
    """A `_Slice` says which part of the larger of two values the other one is.

    Attributes:
        of_ref: Whether the reference has the larger one.
        recipe: What makes it of the larger one, whose key it has.
    """

    of_ref: bool
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class _Cut:
    """A `_Cut` cuts a slice out of a value.

    Attributes:
        steps: What cuts the value into parts.
        part: Which of the parts is the slice.
        shape: The slice's shape.
    """

    steps: tuple[Split, ...]
    part: int
    shape: Shape

    def recipe(self, key: str, *steps: RecipeStep) -> Recipe:
        """Returns the recipe that makes the slice of the tensor of a key, and applies further steps to each part."""
        return Recipe(keys=(key,), steps=(*self.steps, *steps), part=self.part)

    def of(self, array: Array) -> Array:
        """Returns the slice of a value."""
        return reduce(lambda arrays, step: step.apply(arrays), self.steps, [array])[self.part]


def with_read_slices(
    dumps: Dumps, matches: Sequence[Match], order: Order
) -> tuple[tuple[Match, ...], tuple[Match, ...]]:
    """Returns the matches with recipes of the slices that are read, and inverse ones where the reference has more.

    Args:
        dumps: The dumps of the matches.
        matches: The matches, with their layouts.
        order: The index in the candidate of each example of the reference; empty where it is the same.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    pairs = {_names(match): match for match in matches if split_key(match.ref)[0] in _GRADIENTS}
    slices = dict(_slices(dumps, matches, pairs, order))
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
    if order and slices:
        kept = [in_order(dumps, each, order) if _names(each) in slices else each for each in kept]
        turned = Dumps(ref=dumps.cand, cand=dumps.ref)
        inverse = [in_order(turned, each, _inverse(order)) for each in inverse]
    return tuple(kept), tuple(inverse)


def _slices(
    dumps: Dumps, matches: Sequence[Match], gradients: Mapping[_Names, Match], order: Order
) -> Iterator[tuple[_Names, _Slice]]:
    for match in matches:
        gradient = gradients.get(_names(match))
        if split_key(match.ref)[0] not in _VALUES or match.matched_by == "map" or gradient is None:
            continue
        if match.recipe.plain and gradient.recipe.plain and (found := _slice(dumps, match, order)) is not None:
            yield _names(match), found


def _slice(dumps: Dumps, match: Match, order: Order) -> _Slice | None:
    """Returns which slice of one value the other one is; None where it is none, and where both have one size."""
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if not comparable(one.dtype, other.dtype) or dtype_class(other.dtype) != "float":
        return None
    of_ref = math.prod(one.shape) > math.prod(other.shape)
    (source, key), (small, small_key) = (
        ((dumps.ref, match.ref), (dumps.cand, match.cand))
        if of_ref
        else ((dumps.cand, match.cand), (dumps.ref, match.ref))
    )
    shape, gradient = small.entry(small_key).shape, gradient_key(key)
    if not _may_be_slice(source.entry(key).shape, shape) or not source.has_tensor(gradient):
        return None
    cut = _cut(source.array(gradient))
    if cut is None:
        return None
    orders = _orders(cut, shape)
    if len(orders) > 1:
        known = source.has_tensor(key) and small.has_tensor(small_key)
        moved = order if of_ref else _inverse(order)
        orders = _agreeing(cut.of(source.array(key)), small.array(small_key), orders, moved) if known else orders[:1]
    if orders:
        turned = orders[0] != tuple(range(len(shape)))
        return _Slice(of_ref, cut.recipe(key, *((Transpose(orders[0]),) if turned else ())))
    # Each result takes on the shape, which those of a cut into parts of several sizes cannot.
    is_same = differ_by_ones(cut.shape, shape) and all(isinstance(each.into, int) for each in cut.steps)
    return _Slice(of_ref, cut.recipe(key, Reshape(shape))) if is_same else None


def _may_be_slice(large: Shape, small: Shape) -> bool:
    """Returns whether a shape may be that of a slice of a larger one, in any order of axes, or without some of one."""
    if math.prod(large) <= math.prod(small) or not small or len(large) < len(small):
        return False
    sizes = sorted(large)[len(large) - len(small) :]
    return all(size <= own for size, own in zip(sorted(small), sizes, strict=True))


def _cut(gradient: Array) -> _Cut | None:
    """Returns what cuts out the elements that are read; None where all of them are, or none."""
    read = gradient != 0
    if not read.any():
        return None
    steps: list[Split] = []
    shape: list[int] = []
    part = 0
    for axis, size in enumerate(gradient.shape):
        indices = np.flatnonzero(read.any(axis=tuple(each for each in range(read.ndim) if each != axis)))
        first, end = int(indices[0]), int(indices[-1]) + 1
        shape.append(end - first)
        if shape[-1] == 1 < size:
            steps.append(Split(axis, size))
            part = part * size + first
        elif shape[-1] < size:
            sizes = tuple(each for each in (first, end - first, size - end) if each)
            steps.append(Split(axis, sizes))
            part = part * len(sizes) + (first > 0)
    return _Cut(tuple(steps), part, tuple(shape)) if steps else None


def _orders(cut: _Cut, shape: Shape) -> tuple[Shape, ...]:
    """Returns the orders of axes in which a slice has a shape, the likeliest first; of many axes, as they are alone."""
    axes = tuple(range(len(cut.shape)))
    among = permutations(axes) if len(axes) <= _MOST_AXES else [axes]
    found = [order for order in among if tuple(cut.shape[axis] for axis in order) == shape]
    return tuple(sorted(found, key=lambda order: (order == axes, likeliness(order)), reverse=True))


def _agreeing(cut: Array, small: Array, orders: Sequence[Shape], moved: Order) -> tuple[Shape, ...]:
    """Returns the orders in which two values agree; all of them where they agree in none.

    Args:
        cut: The slice of the larger value.
        small: The other value.
        orders: The possible orders of the slice's axes.
        moved: Where the other value has each example of the larger one; empty where both are in one order.
    """
    layouts = [AxisLayout(cut.shape, order, small.shape) for order in orders]
    axes = [axis for axis, size in enumerate(small.shape) if moved and size == len(moved)]
    read = (agreeing_layouts(each, cut, layouts) for each in (small.take(moved, axis) for axis in axes))
    found = next(filter(None, read if axes else [agreeing_layouts(small, cut, layouts)]), ())
    return tuple(layout.axes for layout in found) or tuple(orders)


def _inverse(order: Order) -> Order:
    return tuple(np.argsort(order).tolist())


def _names(match: Match) -> _Names:
    family, name = split_key(match.ref)
    return value_family(family) or family, name, split_key(match.cand)[1]
