"""Computes statistics that only activations have: the shares of dead units and of saturated elements.

A *unit* is one index of an axis, the last one by default; all other axes count as the batch. A unit is *dead* when its
maximum over the batch is at most zero, so that a ReLU returns zeros and passes no gradient. A unit with a NaN is not
dead.

An element is *saturated* when it is within `MARGIN` of a limit of the primitive that computed it, such as 1 for tanh.
The derivative of the primitive is at most 0.02 there.
"""

from __future__ import annotations

import math
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

#: Largest distance from a limit at which an element counts as saturated.
MARGIN: Final = 0.01

#: Share of zeros among the elements of a softmax above which a mask is why.
_MASKED: Final = 0.25

#: The number of terms from which on their sum is that of a series, which is right to eleven digits there.
_MANY: Final = 10_000

#: Lower and upper limit of each JAX primitive that saturates.
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
    """Returns the statistics of an activation, with the shares of dead units and saturated elements where they apply.

    Args:
        array: As for `tensor_stats`.
        primitive: The JAX primitive that computed it; None where unknown.
        unit_axis: The axis of the units: the last in JAX, another one in frameworks that put channels first.
        tier: As for `tensor_stats`; the two shares belong to the full tier.
        exact_quantiles: As for `tensor_stats`.
        hashed: As for `tensor_stats`.
    """
    stats = tensor_stats(array, tier=tier, exact_quantiles=exact_quantiles, hashed=hashed)
    if tier == "core" or not array.size or not is_floating(stats.dtype):
        return stats
    limits = LIMITS.get(primitive or "")
    # Not in the pass of `tensor_stats`, because few blocks are needed: most units are positive somewhere in the first.
    return replace(
        stats,
        dead=dead_share(np.moveaxis(array, unit_axis, -1)) if array.ndim > 1 else None,
        saturated=None if limits is None else saturated_share(array, limits),
    )


def dead_share(array: np.ndarray[Any, Any]) -> float:
    """Returns the share of units whose maximum is at most zero, from 0 to 1.

    Args:
        array: Floating-point, not empty; the last axis is that of the units.
    """
    alive = np.zeros(array.shape[-1], np.bool_)
    for rows in _rows(array):
        # Not `max > 0`, which would count a unit of NaNs as dead.
        alive |= ~(rows.max(axis=0) <= 0)
        if alive.all():
            break
    return 1 - int(np.count_nonzero(alive)) / alive.size


def saturated_share(array: np.ndarray[Any, Any], limits: tuple[float, float]) -> float:
    """Returns the share of elements within `MARGIN` of one of two limits, from 0 to 1; NaNs do not count.

    Args:
        array: Floating-point, not empty.
        limits: The lower and the upper limit.
    """
    low, high = limits[0] + MARGIN, limits[1] - MARGIN
    values = map(real_values, blocks(array))
    saturated = sum(int(np.count_nonzero((block < low) | (block > high))) for block in values)
    return saturated / array.size


def concentration(entries: int, together: float, zeros: float) -> float:
    """Returns how far the shares of a softmax are from equal ones, 0, to a single one, 1.

    Args:
        entries: The number of shares in a row, which sum to 1; at least 2.
        together: The mean over rows of the sum of squares: 1 for a single share.
        zeros: The share of elements that are zero.
    """
    masked = zeros > _MASKED
    # Of a causal mask, position t leaves t shares, whose sum of squares is at least 1 / t.
    equal = _harmonic(entries) / entries if masked else 1 / entries
    return (together - equal) / (1 - equal)


def _harmonic(terms: int) -> float:
    """Returns the sum of 1, 1 / 2, 1 / 3, and so on."""
    if terms < _MANY:
        return sum(1 / term for term in range(1, terms + 1))
    return math.log(terms) + np.euler_gamma + 1 / (2 * terms)


def _rows(array: np.ndarray[Any, Any]) -> Iterator[Array]:
    units = array.shape[-1]
    for block in blocks(array, max(BLOCK_ELEMENTS // units, 1) * units):
        yield real_values(block).reshape(-1, units)
