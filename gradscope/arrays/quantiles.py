"""Exact quantiles of magnitudes, where a histogram's 3 % are too coarse: a copy of the tensor, partitioned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.widening import real_values


def rank_of(percent: int, count: int) -> int:
    """The rank, from 1, of the first of `count` elements that `percent` % of them are at or below."""
    return max(-(-percent * count // 100), 1)


def exact_quantiles(array: Array, percents: Sequence[int]) -> tuple[float, ...] | None:
    """Quantiles of the magnitudes of the finite elements, each one that occurs in the array.

    Args:
        array: Floating-point or complex, of any shape.
        percents: Which quantiles, in percent.

    Returns:
        One magnitude per percent; None where no element is finite.
    """
    parts = [np.abs(values[np.isfinite(values)]) for values in map(real_values, blocks(array))]
    magnitudes = np.concatenate(parts) if parts else np.empty(0)
    if not magnitudes.size:
        return None
    positions = [rank_of(percent, magnitudes.size) - 1 for percent in percents]
    magnitudes.partition(positions)
    return tuple(float(magnitudes[position]) for position in positions)
