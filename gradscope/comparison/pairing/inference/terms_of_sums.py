"""Terms add up to a tensor: which two of several do, and in which order its blocks are those of a sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import wide_values

#: The relative rounding error of a sum of float32 tensors by which two terms are looked for.
_ROUNDING: Final = 1e-4

#: The numbers of blocks of which other orders are tried, and the fewest elements of one.
_COUNTS: Final = (1, 2, 3, 4)
_LEAST_BLOCK: Final = 3

#: The numbers that a cell may add to one of its gates, beside the bias.
_ADDED: Final = (0.0, 1.0, -1.0)

#: The relative error up to which gradients of blocks are equal.
_SAME_GRADIENT: Final = 1e-3


def projection(array: Array) -> float:
    """Returns a sum of the elements with fixed weights: that of a sum of tensors is the sum of those of its terms.

    Args:
        array: The tensor.
    """
    weights = np.random.default_rng(0).normal(size=array.size)
    return float(weights @ wide_values(array).ravel())


def pairs_adding_up(projections: Array, total: float) -> Iterator[tuple[int, int]]:
    """Yields the places of two numbers that add up to a total but for rounding, the first pairs first.

    Args:
        projections: The numbers.
        total: Their sum.
    """
    scale = _ROUNDING * max(abs(total), float(np.abs(projections).max(initial=0.0)))
    order = np.argsort(projections)
    missing = total - projections
    # Twice as far, since these bounds are rounded themselves.
    first = np.searchsorted(projections, missing - 2 * scale, side="left", sorter=order)
    end = np.searchsorted(projections, missing + 2 * scale, side="right", sorter=order)
    for place in np.flatnonzero(end > first):
        others = np.sort(order[first[place] : end[place]])
        close = np.abs(projections[others] + projections[place] - total) <= scale
        yield from ((int(place), int(other)) for other in others[close & (others > place)])


def blocks_of_sum(total: Array, found: Array, gradients: tuple[Array | None, Array | None]) -> tuple[int, ...]:
    """Returns for each block of a sum its place in another tensor, which may be smaller or larger by one in a block.

    Args:
        total: The sum, `[features]`.
        found: The other tensor, of the same shape.
        gradients: The gradients with respect to both, which tell blocks apart that are equal; None where not known.
    """
    for count in _COUNTS:
        if total.size % count or total.size // count < _LEAST_BLOCK:
            continue
        own, other = np.split(total, count), np.split(found, count)
        slopes = [[None] * count if each is None else np.split(each, count) for each in gradients]
        places: list[int] = []
        added: list[float] = []
        for block, slope in zip(own, slopes[0], strict=True):
            fitting = [
                (place, number)
                for place, (each, its) in enumerate(zip(other, slopes[1], strict=True))
                for number in _ADDED
                if _is_near(each + number, block, np.abs(total).max() + abs(number)) and _is_same(slope, its)
            ]
            if len(fitting) != 1:
                break
            places.append(fitting[0][0])
            added.append(fitting[0][1])
        if len({*places}) == count and np.count_nonzero(added) <= 1:
            return tuple(places)
    return ()


def _is_near(one: Array, other: Array, scale: float) -> bool:
    return bool(np.abs(one - other).max() <= _ROUNDING * scale)


def _is_same(one: Array | None, other: Array | None) -> bool:
    """Returns whether two gradients are equal, or one of them is not known."""
    if one is None or other is None:
        return True
    return bool(np.linalg.norm(one - other) <= _SAME_GRADIENT * np.linalg.norm(one))
