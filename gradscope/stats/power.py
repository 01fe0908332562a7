"""Adds up the squares of several tensors, for the root mean square over all inputs or outputs of a layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gradscope.stats.tensor_stats import TensorStats


class Power(NamedTuple):
    """A `Power` has the sum of squares and the number of a tensor's finite elements."""

    sum_of_squares: float
    elements: int

    @property
    def rms(self) -> float:
        """Root mean square of the elements; there is at least one."""
        return math.sqrt(self.sum_of_squares / self.elements)


def power_of(stats: TensorStats) -> Power | None:
    """Returns the power of a tensor from its statistics; None for integers, which have no moments."""
    return None if stats.l2 is None else Power(stats.l2**2, stats.finite)


def combined_power(powers: Iterable[Power | None]) -> Power | None:
    """Returns the power of several tensors together; None where none of them has a power."""
    found = [power for power in powers if power is not None]
    if not found:
        return None
    return Power(sum(power.sum_of_squares for power in found), sum(power.elements for power in found))
