"""Equal parts divide a tensor along an axis: the gates of an LSTM, or query, key and value of one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.interleaved_layouts import interleaved_layouts
from gradscope.comparison.layout.layouts import (
    AxisLayout,
    BlockOrder,
    Shape,
    agreeing_layouts,
    layouts,
    relative_error,
)
from gradscope.comparison.precision import dtype_class, machine_epsilon

_Key = TypeVar("_Key")

#: Returns the layouts that make a shape of the reference of one of the candidate.
Layouts: TypeAlias = Callable[[Shape, Shape], Sequence[AxisLayout]]

#: The numbers of blocks of which other orders are tried: two parts, query, key and value, and the gates of an LSTM.
FEW_BLOCKS: Final = (2, 3, 4)

#: The fewest elements of a block that show which it is where a constant is added.
_FEWEST: Final = 3

#: How far the values of two blocks that are the same may differ, but for the rounding of a short dtype.
SAME: Final = 1e-4


def reordered_blocks(ref: Array, cand: Array, counts: Iterable[int] = FEW_BLOCKS) -> tuple[AxisLayout, ...]:
    """Returns the layout in which the blocks of a candidate's tensor, in another order, are the reference's.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor.
        counts: The numbers of blocks that are tried.

    Returns:
        One layout; empty where there is none, or where blocks are equal to each other.
    """
    for count in counts:
        for joined in _divisible(ref, count):
            parts = np.split(ref, count, axis=joined)
            for axis in _divisible(cand, count):
                blocks = dict(enumerate(np.split(cand, count, axis=axis)))
                found = assigned(parts, blocks)
                if found is not None and (order := tuple(found[0])) != tuple(range(count)):
                    layout = found[1]
                    return (
                        AxisLayout(
                            layout.split,
                            layout.axes,
                            layout.shape,
                            blocks=BlockOrder(axis, joined, order),
                        ),
                    )
    return ()


def shifted_blocks(ref: Array, cand: Array) -> tuple[AxisLayout, ...]:
    """Returns the layout in which the blocks of a vector are the reference's, where a constant is added to one of them.

    The bias of an LSTM may have its gates in another order, and be less by the number that a program adds to one.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor.
    """
    if ref.ndim != 1 or ref.shape != cand.shape or not all(np.isfinite(each).all() for each in (ref, cand)):
        return ()
    for count in (count for count in FEW_BLOCKS if ref.size % count == 0 and ref.size // count >= _FEWEST):
        one, other = (each.astype(np.float64).reshape(count, -1) for each in (ref, cand))
        centred, moved = ((each - each.mean(1, keepdims=True)).reshape(-1) for each in (one, other))
        found = reordered_blocks(centred, moved, (count,))
        if found and found[0].blocks is not None:
            apart = np.abs(other[list(found[0].blocks.order)] - one).max(1) > SAME * np.abs(one).max()
            return found if apart.sum() == 1 else ()
    return ()


def has_constant_blocks(vector: Array) -> bool:
    """Returns whether a vector is constant in each of a few equal blocks.

    Args:
        vector: The vector.
    """
    fitting = (count for count in FEW_BLOCKS if vector.size % count == 0 and vector.size // count >= _FEWEST)
    return any(bool((vector.reshape(count, -1) == vector.reshape(count, -1)[:, :1]).all()) for count in fitting)


def interleaved(ref: Array, cand: Array) -> tuple[AxisLayout, ...]:
    """Returns the layout in which the halves of heads are interleaved in one of two tensors; empty where none agrees.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor.
    """
    if not math.isclose(norm_of(ref), norm_of(cand), rel_tol=SAME):
        return ()
    return agreeing_layouts(ref, cand, interleaved_layouts(ref.shape, cand.shape))


def assigned(
    parts: Sequence[Array], candidates: Mapping[_Key, Array], possible: Layouts = layouts
) -> tuple[list[_Key], AxisLayout] | None:
    """Returns which of some arrays each part is, and the one layout in which all of them are.

    Args:
        parts: Arrays of the reference.
        candidates: Arrays of the candidate.
        possible: Returns the layouts to choose from.

    Returns:
        A key for each part, all different; None where an array is not found.
    """
    norms = {key: norm_of(array) for key, array in candidates.items()}
    keys: list[_Key] = []
    common: AxisLayout | None = None
    for array in parts:
        norm = norm_of(array)
        free = (key for key in candidates if key not in keys)
        near = [key for key in free if math.isclose(norm, norms[key], rel_tol=same(array, candidates[key]))]
        found = next(_agreeing(array, candidates, near, common, possible), None)
        if found is None:
            return None
        keys.append(found[0])
        common = found[1]
    return None if common is None else (keys, common)


def _agreeing(
    array: Array,
    candidates: Mapping[_Key, Array],
    keys: Sequence[_Key],
    common: AxisLayout | None,
    possible: Layouts,
) -> Iterator[tuple[_Key, AxisLayout]]:
    for key in keys:
        among = possible(array.shape, candidates[key].shape) if common is None else (common,)
        agreeing = agreeing_layouts(array, candidates[key], among)
        agreeing = agreeing or (interleaved(array, candidates[key]) if common is None else ())
        if agreeing and relative_error(array, candidates[key], agreeing[0]) <= same(array, candidates[key]):
            yield key, agreeing[0]


def same(*arrays: Array) -> float:
    """Returns how far the values of some arrays that are the same may differ."""
    return max(SAME, *(rounding(dtype) for dtype in {array.dtype.name for array in arrays}))


def rounding(dtype: str) -> float:
    """Returns by how much numbers of a dtype are rounded at most, relatively; zero where they are no floats."""
    return machine_epsilon(dtype) / 2 if dtype_class(dtype) == "float" else 0.0


def norm_of(array: Array) -> float:
    """Returns the Euclidean norm of an array, in float64."""
    return float(np.linalg.norm(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).ravel()))


def _divisible(array: Array, count: int) -> list[int]:
    return [axis for axis, size in enumerate(array.shape) if size >= count and size % count == 0]
