"""`order_of_examples` finds in which order one value has the examples of another, as the values prove.

Inputs are exactly the same in both programs, tokens perhaps in int64 and int32, so that `examples_of` has bytes to be
compared, and `layouts_of_moved_examples` proves the layout where every example is in another place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import encode
from gradscope.arrays.widening import real_values
from gradscope.comparison.layout.layouts import AxisLayout

#: Where each example of a batch is in the parts that are joined.
Order: TypeAlias = tuple[int, ...]

#: The most examples whose order is looked for; each is compared with every other.
_MOST_EXAMPLES: Final = 2048
#: The most values of each example that are read.
_SAMPLE: Final = 1024
#: How many times closer an example is to its counterpart than to any other.
_BY_FAR: Final = 4
#: How far examples of one value are apart, by the squares of their distance and of their norm.
_EQUAL: Final = 1e-10


def order_of_examples(
    whole: Array,
    joined: Array,
    axis: int,
    examples: int,
    *,
    equal: bool = False,
    among_equal: tuple[Array, Array] | None = None,
) -> Order | None:
    """Returns where each example of a value is among those of its joined parts; None where the values prove none.

    Each example has to be closest by far to another one of the parts.

    Args:
        whole: The value.
        joined: Its parts, joined in order.
        axis: The axis of the examples.
        examples: The number of examples of the batch, of each of which the axis may have several entries.
        equal: Whether examples of one value, as two of the same tokens, may be, which are taken in order.
        among_equal: Two values of the same shapes, as the gradients, in which equal examples are closest to their own
            counterparts; None to take equal examples in order.
    """
    size = whole.shape[axis]
    count = examples if examples > 0 and size % examples == 0 else size
    if not 1 < count <= _MOST_EXAMPLES or not whole.size:
        return None
    one, other = (_examples(each, axis, count) for each in (whole, joined))
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    squares = _squared_distances(one, other)
    if equal:
        apart = np.zeros_like(squares)
        if among_equal is not None:
            apart = _squared_distances(*(_examples(each, axis, count) for each in among_equal))
        return _in_order_of_equal(squares, np.square(one).sum(1), apart)
    closest, next_one = np.partition(squares, 1, axis=1)[:, :2].T
    order = tuple(squares.argmin(axis=1).tolist())
    distinct = bool((next_one > 0).all() and (_BY_FAR**2 * closest <= next_one).all())
    return order if distinct and len({*order}) == count else None


def layouts_of_moved_examples(ref: Array, cand: Array, possible: Iterable[AxisLayout]) -> tuple[AxisLayout, ...]:
    """Returns the layouts in which a value has the examples of another, in another order.

    Args:
        ref: The value of the reference, with its examples along the first axis.
        cand: That of the candidate.
        possible: The layouts that their shapes allow.
    """
    if ref.size != cand.size or not ref.size or ref.min() != cand.min() or ref.max() != cand.max():
        return ()
    return tuple(each for each in possible if has_moved_examples(ref, each.read(cand).reshape(each.shape)))


def has_moved_examples(ref: Array, cand: Array) -> bool:
    """Returns whether a value has the examples of another, which are all distinct, in another order.

    Args:
        ref: The value of the reference, with its examples along the first axis.
        cand: That of the candidate, in its layout.
    """
    if ref.shape != cand.shape or ref.shape[:1] <= (1,):
        return False
    one, other = set(examples_of([ref])), set(examples_of([cand]))
    return len(one) == len(ref) and one == other


def examples_of(arrays: Sequence[Array]) -> list[tuple[bytes, ...]]:
    """Returns the bytes of each example in all of some inputs; equal numbers have the same in all types of their class.

    Args:
        arrays: The inputs, each with its examples along the first axis.
    """
    return list(zip(*([_exactly(part).tobytes() for part in each] for each in arrays), strict=True))


def _exactly(array: Array) -> Array:
    """Returns an array in the widest type of its class, in which all of its elements are exact."""
    stored = np.ascontiguousarray(encode(array))
    wide = {"i": np.int64, "u": np.int64, "f": np.float64}.get(stored.dtype.kind)
    return stored if wide is None else stored.astype(wide)


def _squared_distances(one: Array, other: Array) -> Array:
    return np.square(one).sum(1)[:, None] + np.square(other).sum(1) - 2 * one @ other.T


def _in_order_of_equal(squares: Array, sizes: Array, apart: Array) -> Order | None:
    """Returns the closest example of those that are equal to each, and to none before it; None where one has none.

    Args:
        squares: The squares of the distances between examples.
        sizes: The squares of the norms.
        apart: How far examples that are equal are apart otherwise; of those that are as close, the first is taken.
    """
    near = squares <= _EQUAL * sizes[:, None]
    found: list[int] = []
    for row, distances in zip(near, apart, strict=True):
        row[found] = False
        if not row.any():
            return None
        found.append(int(np.where(row, distances, np.inf).argmin()))
    return tuple(found)


def _examples(array: Array, axis: int, count: int) -> Array:
    """Returns a sample of the values of each example, one example a row."""
    first = np.moveaxis(real_values(array.reshape(-1)).reshape(array.shape), axis, 0)
    rows = first.reshape(count, -1)
    step = math.ceil(rows.shape[1] / _SAMPLE)
    return rows[:, ::step].astype(np.float64)
