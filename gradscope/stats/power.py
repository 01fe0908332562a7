"""Computes the root mean square over several tensors: all inputs, or all outputs, of a layer.

The squares themselves are never added up: that of a float64 above 1e154 is more than float64 holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gradscope.stats.tensor_stats import TensorStats


class Power(NamedTuple):
    """A `Power` has the root mean square and the number of a tensor's finite elements."""

    rms: float
    elements: int


def power_of(stats: TensorStats) -> Power | None:
    """Returns the power of a tensor from its statistics; None for integers, which have no moments."""
    return None if stats.rms is None else Power(stats.rms, stats.finite)


def combined_power(powers: Iterable[Power | None]) -> Power | None:
    """Returns the power of several tensors together; None where none of them has a power."""
    found = [power for power in powers if power is not None]
    if not found:
        return None
    elements = sum(power.elements for power in found)
    # Of a single tensor this is its own root mean square, bit for bit.
    rms = math.hypot(*(power.rms * math.sqrt(power.elements / elements) for power in found)) if elements else 0.0
    return Power(rms, elements)
