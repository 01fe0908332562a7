"""`interleaved_layouts` lists the layouts in which the two halves of each head are interleaved.

Rotary positions rotate pairs of features. One program has the two of a pair side by side, and another the first of all
pairs in one half of a head and the second in the other, so that the rows of kernels for queries and keys, and these
themselves, are in another order within each head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from gradscope.comparison.layout.layouts import AxisLayout, Shape, layouts


@cache
def interleaved_layouts(ref: Shape, cand: Shape) -> tuple[AxisLayout, ...]:
    """Returns the layouts of two shapes in which one axis is interleaved in one program, and in halves in the other.

    Args:
        ref: The reference's shape.
        cand: The candidate's shape.
    """
    return tuple(dict.fromkeys(each for layout in layouts(ref, cand) for each in _interleaved(layout)))


def _interleaved(layout: AxisLayout) -> Iterator[AxisLayout]:
    for axis, size in enumerate(layout.split):
        for pairs in (pairs for pairs in range(2, size // 2 + 1) if size % (2 * pairs) == 0):
            for halves in ((pairs, 2), (2, pairs)):
                split = (*layout.split[:axis], size // (2 * pairs), *halves, *layout.split[axis + 1 :])
                axes = tuple(
                    place
                    for each in layout.axes
                    for place in ((axis, axis + 2, axis + 1) if each == axis else (each + 2 * (each > axis),))
                )
                yield replace(layout, split=split, axes=axes, interleaved=True)
