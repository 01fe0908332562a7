"""Power: what of a tensor's size adds up when several tensors go into a layer, or several processes share one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gradscope.stats.tensor_stats import TensorStats


class Power(NamedTuple):
    """Sum of squares and number of a tensor's finite elements."""

    sum_of_squares: float
    elements: int

    @property
    def rms(self) -> float:
        """The root mean square of the elements, of which there is one at least."""
        return math.sqrt(self.sum_of_squares / self.elements)


def power_of(stats: TensorStats) -> Power | None:
    """The power behind a tensor's statistics; None for tensors that have none (integers)."""
    return None if stats.l2 is None else Power(stats.l2**2, stats.finite)


def together(powers: Iterable[Power | None]) -> Power | None:
    """The power of several tensors; None where none of them has any."""
    found = [power for power in powers if power is not None]
    if not found:
        return None
    return Power(sum(power.sum_of_squares for power in found), sum(power.elements for power in found))
