"""`SharedElements` rules out that a tensor is made of others, by a few of its elements, before any order is tried.

Each of these elements must be one of the others', whatever the order. Among very many others, some is near any number;
then it must also lie between the same two neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.values.parts.part_candidates import constant_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM

#: How many elements of a tensor are looked for, and how many of them are found where it is made of the others.
_SAMPLE: Final = 32
_AMONG: Final = 0.75

#: How many are found between the same neighbours: those at the edge of a part have others.
_BETWEEN: Final = 0.5

#: The fewest elements that are very many.
_MANY: Final = 1 << 14


class SharedElements:
    """`SharedElements` sorts the elements of tensors that may be parts of others, of the same tensors in turn once.

    Args:
        source: Their dump.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source = source
        self._parts: tuple[str, ...] = ()
        self._elements: _Elements

    def are_of(self, holder: DumpSource, key: str, parts: Sequence[str]) -> bool:
        """Returns whether most of a few elements of another dump's tensor are among those of some parts.

        Args:
            holder: The other dump.
            key: The tensor; the parts of a constant are no evidence.
            parts: The keys of the parts.
        """
        if constant_of(holder, key) is not None:
            return False
        whole, known = holder.array(key), self._of(tuple(parts))
        places = np.linspace(0, whole.size - 1, min(_SAMPLE, whole.size)).astype(np.int64)
        elements = whole.reshape(-1)[places].astype(np.float64)
        tolerance = joined_tolerance(whole.dtype.name, self._source, parts)
        reach = tolerance * np.maximum(np.abs(elements), np.sqrt(np.square(elements).mean()))
        first, end = (np.searchsorted(known.ordered, elements + sign * reach) for sign in (-1, 1))
        if (end > first).mean() < _AMONG:
            return False
        between = [*_between(whole.reshape(-1), places, whole.shape)]
        if known.ordered.size < _MANY or not between:
            return True
        wanted = np.stack(between, axis=1)
        found = [known.lie_between(*each) for each in zip(first, end, wanted, reach, strict=True)]
        return sum(found) >= _BETWEEN * len(found)

    def _of(self, parts: tuple[str, ...]) -> _Elements:
        """Returns the elements of some tensors; those of one call are kept for the next."""
        if parts != self._parts:
            arrays = [self._source.array(part) for part in parts]
            flat = np.concatenate([array.reshape(-1) for array in arrays])
            flat = flat if flat.dtype.char in "fd" else flat.astype(np.float64)
            order = np.argsort(flat)
            self._elements = _Elements(flat, order, flat[order], tuple(array.shape for array in arrays))
            self._parts = parts
        return self._elements


class _Elements(NamedTuple):
    """_Elements has the elements of some tensors, one behind the other.

    Attributes:
        flat: The elements.
        order: Their places by value.
        ordered: They by value.
        shapes: The shapes of the tensors.
    """

    flat: Array
    order: Array
    ordered: Array
    shapes: tuple[Shape, ...]

    def lie_between(self, first: int, end: int, wanted: Array, reach: float) -> bool:
        """Returns whether one of some elements lies between two numbers.

        Args:
            first: The first element by value.
            end: The one behind the last.
            wanted: Pairs of numbers `[pairs, 2]`, of which any will do.
            reach: How far an element may be from a number.
        """
        places = np.sort(self.order[first:end])
        sizes = [math.prod(shape) for shape in self.shapes]
        starts = np.cumsum([0, *sizes])
        cuts = np.searchsorted(places, starts)
        for shape, size, start, low, high in zip(self.shapes, sizes, starts, cuts, cuts[1:], strict=False):
            own = self.flat[start : start + size]
            for found in _between(own, places[low:high] - start, shape) if high > low else ():
                if (np.abs(found[:, None] - wanted) <= reach).all(-1).any():
                    return True
        return False


def _between(flat: Array, places: Array, shape: Shape) -> Iterator[Array]:
    """Yields the elements before and behind some, `[places, 2]`, along each axis; NaN at its ends."""
    stride = flat.size
    for size in shape:
        stride //= size
        if size > 2:
            along = places // stride % size
            before, behind = flat[places - stride * (along > 0)], flat[places + stride * (along < size - 1)]
            apart = np.stack([before, behind], axis=1).astype(np.float64)
            apart[(along == 0) | (along == size - 1)] = np.nan
            yield apart


def joined_tolerance(dtype: str, source: DumpSource, parts: Iterable[str]) -> float:
    """Returns how far a parameter of a dtype may differ from parts that are joined in it."""
    return max(default_tolerance(PARAM, dtype, each) for each in {source.entry(part).dtype for part in parts})
