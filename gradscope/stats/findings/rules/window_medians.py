"""The medians of all windows of a series cost as much as sorting it, and not each the time of its window.

The elements of the window are marked in a binary indexed tree over the ranks of the series.

References:
    Fenwick: A New Data Structure for Cumulative Frequency Tables, 1994.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def window_medians(series: Sequence[float], size: int) -> list[float]:
    """Returns the median of the last elements before each position, as far as there are any; nan at the first.

    Args:
        series: The elements, none of which is NaN.
        size: The most elements of a window.

    Returns:
        One median for each position, that behind the last element included.
    """
    order = sorted(range(len(series)), key=series.__getitem__)
    ranks = dict(zip(order, range(len(series)), strict=True))
    marks = _Marks(len(series))
    medians = [math.nan]
    for position in range(len(series)):
        marks.add(ranks[position], 1)
        if position >= size:
            marks.add(ranks[position - size], -1)
        count = min(position + 1, size)
        low, high = (series[order[marks.rank(number)]] for number in ((count - 1) // 2, count // 2))
        medians.append(high if count % 2 else (low + high) / 2)
    return medians


class _Marks:
    """`_Marks` of ranks add up in a tree, by which the rank of the n-th mark is found."""

    def __init__(self, length: int) -> None:
        self._length = 1 << length.bit_length()
        self._sums = [0] * (self._length + 1)

    def add(self, rank: int, count: int) -> None:
        """Adds to the number of marks at a rank."""
        node = rank + 1
        while node <= self._length:
            self._sums[node] += count
            node += node & -node

    def rank(self, number: int) -> int:
        """Returns the rank of the mark before which there are so many."""
        node, step = 0, self._length
        while step:
            if self._sums[node + step] <= number:
                node += step
                number -= self._sums[node]
            step //= 2
        return node
