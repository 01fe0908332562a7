"""A `Floor` is the l2 norm that rounding can reach in a tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

#: How many times as large as an estimate is what may be rounding where two programs' gradients have nothing in common.
UNRELATED: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Floor stores the l2 norm that rounding can reach.

    Attributes:
        l2: The norm.
        cancelled: The norm up to which the terms of a tensor cancel, so that the floor counts.
        terms: The number of terms of each element.
        is_estimate: Whether the sums that make the tensor are not known, so that both norms are estimates.
        elements: The number of elements of an estimate.
        is_passed: Whether the floor is that of the gradient that the tensor is made of.
        inherited: The norm that a difference has by those of gradients which agree, and whose sum the tensor is; the
            sum may be small beside its terms, whether these cancel altogether or not.
    """

    l2: float
    cancelled: float
    terms: int
    is_estimate: bool = False
    elements: int = 0
    is_passed: bool = False
    inherited: float = 0.0

    def times(self, factor: float) -> Floor:
        """Returns a floor that is larger by a factor."""
        return replace(self, l2=factor * self.l2, cancelled=factor * self.cancelled)
