"""`uneven_parts` matches a tensor of one dump with tensors of several sizes of the other that are joined in it.

Where several queries share a key and a value, one kernel `[in, queries + keys + values]` is three of another framework.
The parts are found one after the other along an axis, by their values, all as they are or all with the same order of
axes. Where a value is wrong, those of another block of the network show what the parts are called.

The parts may also be cut into blocks that are joined in another order (`shuffled_blocks`): a GRU has two gates in one
kernel and the third in another, and a packed projection has query, key and value of each head side by side. Parts of
one shape may have an axis for the heads, as in Flax. Or the tensor has its gates in another order along the other axis,
as the kernel of an LSTM for the input and the state.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.layout.layouts import Shape, relative_error
from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    RecipeStep,
    Reshape,
    Split,
    Transpose,
    in_order_of_blocks,
)
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.shuffled_blocks import reordered, shuffled_blocks
from gradscope.comparison.pairing.matching import Dumps, Match, MatchedBy
from gradscope.comparison.pairing.values.part_candidates import ShiftedNames, spelt
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM

#: The most axes of a tensor whose parts are tried with their axes in every order: those of a convolution of images.
_MOST_AXES: Final = 4

#: The numbers of gates of a cell whose orders are tried.
_GATES: Final = (2, 3, 4)

#: The most tensors that are tried as parts of one: all of them are read.
_MOST_PARTS: Final = 128


class _Axes(NamedTuple):
    """_Axes has the order of a part's axes in a packed tensor.

    Attributes:
        order: The order.
        apart: The shape in that order of parts that have an axis more, for the heads; () of other parts.
        shape: The same with that axis merged into the next one.
    """

    order: tuple[int, ...]
    apart: Shape = ()
    shape: Shape = ()

    def of(self, array: Array) -> Array:
        """Returns a part with its axes in the order of the packed tensor."""
        ordered = array.transpose(self.order)
        return ordered.reshape(self.shape) if self.apart else ordered

    def steps(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that put the axes of a part into order."""
        return (*_turned(self.order), *((Reshape(self.shape),) if self.apart else ()))

    def inverse(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that put them back."""
        back = tuple(np.argsort(self.order).tolist())
        return (*((Reshape(self.apart),) if self.apart else ()), *_turned(back))


def _turned(order: tuple[int, ...]) -> tuple[RecipeStep, ...]:
    """Returns the step that puts axes into an order; none for the order that they have."""
    return (Transpose(order),) if order != tuple(range(len(order))) else ()


@dataclass(frozen=True, slots=True)
class _Joined:
    """_Joined stores the parts of a tensor in order along `axis`, and the order of axes that makes a part of each.

    Where `blocks` are stated, the parts are joined and cut into so many equal blocks along the axis `across`, which are
    in that order in the tensor. `matched_by` is the pass: by values, or only by the names of others that values show.
    """

    key: str
    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    axis: int
    axes: _Axes
    blocks: tuple[int, ...] = ()
    across: int = 0
    matched_by: MatchedBy = "fingerprint"

    def joining(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the tensor of its parts."""
        return (*self.axes.steps(), Concatenate(self.axis), *in_order_of_blocks(self.across, self.blocks))

    def parting(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the parts of the tensor."""
        blocks = tuple(np.argsort(self.blocks).tolist())
        return (*in_order_of_blocks(self.across, blocks), Split(self.axis, self.sizes), *self.axes.inverse())


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


def _found(holder: DumpSource, keys: Sequence[str], other: DumpSource, singles: Sequence[str]) -> Iterator[_Joined]:
    # By shape and dtype, of which there are few, whatever the number of tensors.
    free: defaultdict[tuple[tuple[int, ...], str], dict[str, int]] = defaultdict(dict)
    for place, single in enumerate(singles):
        entry = other.entry(single)
        free[entry.shape, entry.dtype][single] = place
    solved: list[_Joined] = []
    for key in keys:
        entry = holder.entry(key)
        if not 0 < len(entry.shape) <= _MOST_AXES:
            continue
        of_shape = [
            (math.prod(shape), alike)
            for (shape, dtype), alike in free.items()
            if _may_be_part(shape, entry.shape) and comparable(dtype, entry.dtype)
        ]
        fitting = [alike for _, alike in of_shape]
        if not 1 < sum(map(len, fitting)) <= _MOST_PARTS:
            continue
        if sum(size * len(alike) for size, alike in of_shape) < math.prod(entry.shape):
            continue  # they are too small, and the tensor is not read
        places = {single: place for alike in fitting for single, place in alike.items()}
        if (joined := _joined(holder, key, other, sorted(places, key=places.__getitem__))) is not None:
            for alike in fitting:
                for part in joined.parts:
                    alike.pop(part, None)
            solved.append(joined)
            yield joined
    left = {spelt(single): single for alike in free.values() for single in alike}
    yield from _by_names(holder, keys, other, left, solved)


def _by_names(
    holder: DumpSource, keys: Iterable[str], other: DumpSource, left: dict[str, str], solved: Sequence[_Joined]
) -> Iterator[_Joined]:
    """Yields tensors with the parts that those of a tensor of the same shapes show, whose values agree."""
    shifted, done = ShiftedNames(), {each.key for each in solved}
    alike: dict[tuple[tuple[int, ...], ...], _Joined] = {}
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


def _may_be_part(part: Shape, packed: Shape) -> bool:
    """Returns whether a shape is that of a part: smaller along one axis, and the same along the others."""
    if len(part) == len(packed) + 1 <= _MOST_AXES:
        return any(_may_be_part(axes.shape, packed) for axes in _with_heads(part))
    others = Counter(packed) - Counter(part)
    return len(part) == len(packed) and others.total() == 1 and math.prod(part) < math.prod(packed)


def _with_heads(part: Shape) -> Iterator[_Axes]:
    """Yields the orders of a part's axes with two of them merged."""
    for order in permutations(range(len(part))):
        apart = tuple(part[axis] for axis in order)
        for at in range(len(part) - 1):
            yield _Axes(order, apart, (*apart[:at], apart[at] * apart[at + 1], *apart[at + 2 :]))


def _arrangements(packed: Shape, parts: Iterable[Shape]) -> Iterator[tuple[Shape, _Axes]]:
    """Yields shapes of parts, () for all of as many axes as a tensor, and the orders that their axes may have in it."""
    yield from (((), _Axes(order)) for order in permutations(range(len(packed))))
    for shape in dict.fromkeys(each for each in parts if len(each) > len(packed)):
        for axes in _with_heads(shape):
            if sum(one != other for one, other in zip(axes.shape, packed, strict=True)) == 1:
                yield shape, axes


def _joined(holder: DumpSource, key: str, other: DumpSource, singles: Sequence[str]) -> _Joined | None:
    packed = holder.array(key)
    tolerance = default_tolerance(PARAM, str(packed.dtype), str(packed.dtype))
    if bool((packed == packed.flat[0]).all()):
        return None  # the parts of a constant are no evidence
    arrays = {single: other.array(single) for single in singles}
    possible = list(_arrangements(packed.shape, (array.shape for array in arrays.values())))
    for find, (shape, axes) in product((_in_order, _in_other_order, _with_gates_in_other_order), possible):
        fitting = (
            each for each in arrays if (arrays[each].shape == shape if shape else arrays[each].ndim == packed.ndim)
        )
        ordered = {single: axes.of(arrays[single]) for single in fitting}
        for axis in range(packed.ndim) if len(ordered) > 1 else ():
            if (found := find(packed, ordered, axis, tolerance)) is not None:
                sizes = tuple(ordered[part].shape[axis] for part in found.parts)
                return _Joined(key, found.parts, sizes, axis, axes, found.blocks, found.across)
    return None


class _Cover(NamedTuple):
    """_Cover has the tensors that make up another, and the order of their blocks in it, as `_Joined` has them."""

    parts: tuple[str, ...]
    blocks: tuple[int, ...] = ()
    across: int = 0


def _in_order(packed: Array, parts: Mapping[str, Array], axis: int, tolerance: float) -> _Cover | None:
    """Returns the tensors that make up another along an axis, in order."""
    along = {name: np.moveaxis(part, axis, 0) for name, part in parts.items()}
    found = _cover(np.moveaxis(packed, axis, 0), along, tolerance)
    return _Cover(found) if len(found) > 1 else None


def _in_other_order(packed: Array, parts: Mapping[str, Array], axis: int, tolerance: float) -> _Cover | None:
    """Returns the tensors whose blocks make up another along an axis, in another order."""
    packed = np.moveaxis(packed, axis, 0)
    along = {name: np.moveaxis(part, axis, 0) for name, part in parts.items()}
    fitting = {name: part for name, part in along.items() if part.shape[1:] == packed.shape[1:]}
    found = shuffled_blocks(packed, fitting) if len(fitting) > 1 else None
    if found is None or len(found[0]) < 2:
        return None
    names, blocks = found
    made = reordered(np.concatenate([fitting[name] for name in names]), blocks, 0)
    return _Cover(names, blocks, axis) if relative_error(packed, made) <= tolerance else None


def _with_gates_in_other_order(packed: Array, parts: Mapping[str, Array], axis: int, tolerance: float) -> _Cover | None:
    """Returns the tensors that make up another along an axis, where its gates are in another order along the other."""
    if packed.ndim != 2:
        return None
    across = 1 - axis
    # The norms of rows do not depend on the order of what is in them, and rule out almost all.
    norms = {name: np.linalg.norm(part, axis=across) for name, part in parts.items()}
    fitting = {name: each for name, each in norms.items() if parts[name].shape[across] == packed.shape[across]}
    names = _cover(np.linalg.norm(packed, axis=across), fitting, tolerance)
    joined = np.concatenate([parts[name] for name in names], axis=axis) if len(names) > 1 else packed[:0]
    for count in _GATES if len(names) > 1 else ():
        for blocks in permutations(range(count)) if packed.shape[across] % count == 0 else ():
            if relative_error(packed, reordered(joined, blocks, across)) <= tolerance:
                return _Cover(names, blocks, across)
    return None


def _cover(packed: Array, parts: Mapping[str, Array], tolerance: float) -> tuple[str, ...]:
    """Returns the tensors that make up another along its first axis, in order; empty where some of it is none."""
    found: list[str] = []
    start = 0
    while start < len(packed):
        fitting = (
            name
            for name, part in parts.items()
            if name not in found
            and part.shape[1:] == packed.shape[1:]
            and 0 < len(part) <= len(packed) - start
            and relative_error(packed[start : start + len(part)], part) <= tolerance
        )
        if (name := next(fitting, None)) is None:
            return ()
        found.append(name)
        start += len(parts[name])
    return tuple(found)
