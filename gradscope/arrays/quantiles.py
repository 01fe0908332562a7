"""Computes exact quantiles of magnitudes from a partitioned copy of the tensor; those of a histogram are within 3 %."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.widening import real_values


def rank_of(percent: int, count: int) -> int:
    """Returns the rank, from 1, of the smallest of `count` elements that `percent` % of them do not exceed."""
    return max(-(-percent * count // 100), 1)


def exact_quantiles(array: Array, percents: Sequence[int]) -> tuple[float, ...] | None:
    """Returns quantiles of the finite elements' magnitudes; each quantile is the magnitude of an element.

    Args:
        array: Floating-point or complex, of any shape.
        percents: The requested quantiles, in percent.

    Returns:
        One magnitude per percentage; None where no element is finite.
    """
    parts = [np.abs(values[np.isfinite(values)]) for values in map(real_values, blocks(array))]
    magnitudes = np.concatenate(parts) if parts else np.empty(0)
    if not magnitudes.size:
        return None
    positions = [rank_of(percent, magnitudes.size) - 1 for percent in percents]
    magnitudes.partition(positions)
    return tuple(float(magnitudes[position]) for position in positions)
