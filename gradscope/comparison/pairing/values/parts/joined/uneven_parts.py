"""`uneven_parts` matches a tensor of one dump with tensors of several sizes of the other that are joined in it.

Where several queries share a key and a value, one kernel `[in, queries + keys + values]` is three of another framework.
The parts are found one after the other along an axis, by their values, all as they are or all with the same order of
axes. Where a value is wrong, those of another block of the network show what the parts are called.

The parts may also be cut into blocks that are joined in another order (`shuffled_blocks`): a GRU has two gates in one
kernel and the third in another, and a packed projection has query, key and value of each head side by side. Parts of
one shape may have an axis for the heads, as in Flax. Or the tensor has its gates in another order along the other axis,
as the kernel of an LSTM for the input and the state. A part that is a single row may have no axis for that, as a class
token that is the first row of a table in one program. Parts that are joined or stacked may have their single rows in
another order, as keys whose halves are interleaved in one program. Axes of one element do not count: a convolution of
width 1 in one program is a dense layer in the other.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, permutations, product
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.shuffled_blocks import WAYS
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.values.parts.joined.free_parts import FreeParts
from gradscope.comparison.pairing.values.parts.joined.joined_tensors import (
    JoinedAxes,
    JoinedParts,
    PlainShape,
    PlainShapes,
)
from gradscope.comparison.pairing.values.parts.joined.shared_elements import SharedElements, joined_tolerance
from gradscope.comparison.pairing.values.parts.part_names import ShiftedNames, spelt
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource

#: The most axes of a tensor whose parts are tried with their axes in every order: those of a convolution of images.
_MOST_AXES: Final = 4


def uneven_parts(dumps: Dumps, ref: Sequence[str], cand: Sequence[str]) -> Iterator[Match]:
    """Yields matches of tensors with the tensors that are joined in them.

    Args:
        dumps: The dumps.
        ref: The reference's stored tensors without a counterpart.
        cand: The candidate's.
    """
    for joined in _found(dumps.cand, cand, dumps.ref, ref):
        for part, key in enumerate(joined.parts):
            recipe = Recipe(keys=(joined.key,), steps=joined.parting(), part=part)
            yield Match(ref=key, recipe=recipe, matched_by=joined.matched_by)
    for joined in _found(dumps.ref, ref, dumps.cand, cand):
        recipe = Recipe(keys=joined.parts, steps=joined.joining())
        yield Match(ref=joined.key, recipe=recipe, matched_by=joined.matched_by)


def _found(holder: DumpSource, keys: Sequence[str], other: DumpSource, singles: Sequence[str]) -> Iterator[JoinedParts]:
    free, shared = FreeParts(other, singles), SharedElements(other)
    solved: list[JoinedParts] = []
    # Tensors of one shape follow each other: they have the same candidates, whose elements are read and sorted once.
    in_turn: defaultdict[tuple[Shape, str], list[str]] = defaultdict(list)
    for key in keys:
        in_turn[holder.entry(key).shape, holder.entry(key).dtype].append(key)
    for key in chain.from_iterable(in_turn.values()):
        shape, dtype = holder.entry(key).shape, holder.entry(key).dtype
        packed = _plain(shape)
        if not 0 < len(packed) <= _MOST_AXES:
            continue
        parts = free.of(math.prod(shape), partial(_fits, packed=packed, into=dtype), least=2)
        if not parts or not shared.are_of(holder, key, parts):
            continue
        if (joined := _joined(holder, key, other, parts)) is not None:
            free.remove(joined.parts)
            solved.append(joined)
            yield joined
    left = {spelt(single): single for single in free}
    yield from _by_names(holder, keys, other, left, solved)


def _by_names(
    holder: DumpSource, keys: Iterable[str], other: DumpSource, left: dict[str, str], solved: Sequence[JoinedParts]
) -> Iterator[JoinedParts]:
    """Yields tensors with the parts that those of a tensor of the same shapes show, whose values agree."""
    shifted, done = ShiftedNames(), {each.key for each in solved}
    alike: dict[tuple[tuple[int, ...], ...], JoinedParts] = {}
    for each in solved:
        shifted.add(each.key, each.parts)
        alike.setdefault((holder.entry(each.key).shape, *(other.entry(part).shape for part in each.parts)), each)
    for key in (key for key in keys if key not in done):
        for names in shifted.parts_of(key):
            parts = tuple(left[name] for name in names if name in left)
            shapes = (holder.entry(key).shape, *(other.entry(part).shape for part in parts))
            if len(parts) == len(names) and shapes in alike:
                for part in parts:
                    del left[spelt(part)]
                yield replace(alike[shapes], key=key, parts=parts, matched_by="order")
                break


def _plain(shape: Shape, least: int = 0) -> Shape:
    """Returns a shape without its axes of one element; the last of them stay where fewer than `least` are left."""
    ones = [axis for axis, size in enumerate(shape) if size == 1][: max(len(shape) - least, 0)]
    return tuple(size for axis, size in enumerate(shape) if axis not in ones)


def _fits(shape: Shape, dtype: str, *, packed: Shape, into: str) -> bool:
    return comparable(dtype, into) and _may_be_part(_plain(shape, len(packed)), packed)


def _may_be_part(part: Shape, packed: Shape) -> bool:
    """Returns whether a shape is that of a part: smaller along one axis, or without it, and the same elsewhere."""
    if len(part) == len(packed) + 1 <= _MOST_AXES:
        return any(_may_be_part(axes.shape, packed) for axes in _with_heads(part))
    others = Counter(packed) - Counter(part)
    return 0 <= len(packed) - len(part) <= 1 and others.total() == 1 and math.prod(part) < math.prod(packed)


def _with_heads(part: Shape) -> Iterator[JoinedAxes]:
    """Yields the orders of a part's axes with two of them merged."""
    for order in permutations(range(len(part))):
        apart = tuple(part[axis] for axis in order)
        for at in range(len(part) - 1):
            yield JoinedAxes(order, apart, (*apart[:at], apart[at] * apart[at + 1], *apart[at + 2 :]))


def _arrangements(packed: Shape, parts: Iterable[Shape]) -> Iterator[tuple[Shape, JoinedAxes]]:
    """Yields shapes of parts, () for all of as many axes as a tensor, and the orders that their axes may have in it."""
    yield from (((), JoinedAxes(order)) for order in permutations(range(len(packed))))
    for shape in dict.fromkeys(each for each in parts if len(each) == len(packed) + 1):
        for axes in _with_heads(shape):
            if sum(one != other for one, other in zip(axes.shape, packed, strict=True)) == 1:
                yield shape, axes


def _joined(holder: DumpSource, key: str, other: DumpSource, singles: Sequence[str]) -> JoinedParts | None:
    stored, dtype = holder.entry(key).shape, holder.entry(key).dtype
    packed = holder.array(key).reshape(_plain(stored))
    tolerance = joined_tolerance(dtype, other, singles)
    read = {single: other.array(single) for single in singles}
    arrays = {single: array.reshape(_plain(array.shape, packed.ndim)) for single, array in read.items()}
    for view in _views(packed, [array.ndim for array in arrays.values()]):
        possible = _arrangements(view.array.shape, (array.shape for array in arrays.values()))
        for find, (shape, axes) in product(WAYS, list(possible)):
            for axis in view.axes:
                own = dict(_along(arrays, view, shape, axes, axis))
                if len(own) < 2 or (found := find(view.array, own, axis, tolerance)) is None:
                    continue
                sizes = tuple(own[part].shape[axis] for part in found.parts)
                plain = (_lifted(arrays[part].shape, view, axes.order[axis]) for part in found.parts)
                each = PlainShapes.of([*zip((read[part].shape for part in found.parts), plain, strict=True)])
                if each is not None:
                    whole = PlainShape(stored, packed.shape)
                    order = (found.blocks, found.across)
                    return JoinedParts(key, found.parts, sizes, axis, axes, whole, each, *order, view.stacked)
    return None


def _along(
    arrays: Mapping[str, Array], view: _View, shape: Shape, axes: JoinedAxes, axis: int
) -> Iterator[tuple[str, Array]]:
    """Yields what may be joined along an axis: a single row may have no axis for that, beside parts that have one."""
    rank = view.array.ndim
    if all(array.ndim != rank for array in arrays.values()) and not shape:
        return
    for single, array in arrays.items():
        if array.shape == shape if shape else array.ndim == rank:
            yield single, axes.of(array)
        elif not shape and array.ndim == rank - 1 and view.stacked is None:
            yield single, axes.of(array.reshape(_lifted(array.shape, view, axes.order[axis])))


def _lifted(shape: Shape, view: _View, axis: int) -> Shape:
    """Returns the shape of a part, with an axis of one element where it has none to be joined along."""
    return shape if len(shape) >= view.array.ndim else (*shape[:axis], 1, *shape[axis:])


class _View(NamedTuple):
    """_View has a tensor as it is, or with the axis that parts are stacked along merged into another one.

    Attributes:
        array: The tensor.
        axes: The axes that parts may be joined along.
        stacked: The axis that is merged; None where none is.
    """

    array: Array
    axes: Sequence[int]
    stacked: int | None = None


def _views(packed: Array, ranks: Sequence[int]) -> Iterator[_View]:
    """Yields the views of a tensor whose parts have these numbers of axes."""
    yield _View(packed, range(packed.ndim))
    count = ranks.count(packed.ndim - 1)
    for stacked in (axis for axis, size in enumerate(packed.shape) if 1 < size <= count):
        slices = list(np.moveaxis(packed, stacked, 0))
        yield from (_View(np.concatenate(slices, axis), (axis,), stacked) for axis in range(packed.ndim - 1))
