"""`merging_orders` lists the orders of axes in which merging neighbours gives another shape."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import mul

Shape = tuple[int, ...]


def ordered(shape: Shape, axes: Shape) -> Shape:
    """Returns a shape with its axes in another order."""
    return tuple(shape[axis] for axis in axes)


def merges_into(fine: Shape, coarse: Shape) -> bool:
    """Returns whether merging neighbouring axes of `fine` gives `coarse`, but for axes of size one."""
    return set(accumulate(coarse, mul)) <= {1, *accumulate(fine, mul)}


def merging_orders(fine: Shape, coarse: Shape) -> Iterator[Shape]:
    """Yields the orders of the axes of `fine` that merge into `coarse`, in that of `itertools.permutations`.

    Axes that cannot follow are left out at once, since of six axes there are 720 orders, of which few merge.

    Args:
        fine: The shape whose axes are put into an order.
        coarse: The shape that merging neighbours of these gives, but for axes of size one.
    """
    return _orders(fine, tuple(accumulate(coarse, mul)), 1, ())


def _orders(fine: Shape, ends: Shape, size: int, taken: Shape) -> Iterator[Shape]:
    """Yields the orders that begin with the axes `taken`, of `size` elements; `ends` are those of merged axes."""
    while ends and ends[0] == size:
        ends = ends[1:]
    if len(taken) == len(fine):
        yield from () if ends else (taken,)
        return
    for axis in (axis for axis in range(len(fine)) if axis not in taken):
        more = size * fine[axis]
        if not ends or ends[0] == more or (more and ends[0] % more == 0):
            yield from _orders(fine, ends, more, (*taken, axis))
