"""What an activation tells that another tensor does not: dead units, and elements at the limit of what made them.

A *unit* is one index of the last axis, unless said otherwise; all before that is the batch it is judged over. A unit is
*dead* when its maximum is at most zero: a rectifier behind it, or the one that made it, passes nothing on. A NaN is not
dead.

An element is *saturated* when it is within `MARGIN` of a limit of the primitive that made it: there the gradient that
passes through is at most 0.02 of what arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import BLOCK_ELEMENTS, Array, blocks
from gradscope.arrays.dtypes import is_floating
from gradscope.arrays.widening import real_values
from gradscope.dump.manifest.manifest import Tier
from gradscope.stats.tensor_stats import TensorStats, tensor_stats

#: How near to a limit is at the limit.
MARGIN: Final = 0.01

#: The limits of each JAX primitive that has some.
LIMITS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {"tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "logistic": (0.0, 1.0)}
)


def activation_stats(
    array: np.ndarray[Any, Any],
    *,
    primitive: str | None,
    unit_axis: int = -1,
    tier: Tier = "full",
    exact_quantiles: bool = False,
    hashed: bool = True,
) -> TensorStats:
    """The statistics of an activation, dead and saturated shares included where they apply.

    Args:
        array: As for `tensor_stats`.
        primitive: The JAX primitive that made it; None where unknown.
        unit_axis: The axis of its units: the last in JAX, another where a framework puts channels before positions.
        tier: As for `tensor_stats`; the shares belong to the full tier.
        exact_quantiles: As for `tensor_stats`.
        hashed: As for `tensor_stats`.

    Returns:
        The statistics.
    """
    stats = tensor_stats(array, tier=tier, exact_quantiles=exact_quantiles, hashed=hashed)
    if tier == "core" or not array.size or not is_floating(stats.dtype):
        return stats
    limits = LIMITS.get(primitive or "")
    # Why not in the pass of the others: the first blocks show almost every unit alive, and then there is nothing to do.
    return replace(
        stats,
        dead=dead_share(np.moveaxis(array, unit_axis, -1)) if array.ndim > 1 else None,
        saturated=None if limits is None else saturated_share(array, limits),
    )


def dead_share(array: np.ndarray[Any, Any]) -> float:
    """The share of units whose maximum is at most zero.

    Args:
        array: Floating-point, not empty; the last axis is the units.

    Returns:
        A share from 0 to 1.
    """
    alive = np.zeros(array.shape[-1], np.bool_)
    for rows in _rows(array):
        # Not `max > 0`: that would count a unit of NaNs as dead.
        alive |= ~(rows.max(axis=0) <= 0)
        if alive.all():
            break
    return 1 - int(np.count_nonzero(alive)) / alive.size


def saturated_share(array: np.ndarray[Any, Any], limits: tuple[float, float]) -> float:
    """The share of elements within `MARGIN` of one of two limits.

    Args:
        array: Floating-point, not empty.
        limits: The lower and the upper limit.

    Returns:
        A share from 0 to 1 of all elements; a NaN is not at a limit.
    """
    low, high = limits[0] + MARGIN, limits[1] - MARGIN
    values = map(real_values, blocks(array))
    saturated = sum(int(np.count_nonzero((block < low) | (block > high))) for block in values)
    return saturated / array.size


def _rows(array: np.ndarray[Any, Any]) -> Iterator[Array]:
    units = array.shape[-1]
    for block in blocks(array, max(BLOCK_ELEMENTS // units, 1) * units):
        yield real_values(block).reshape(-1, units)
