"""Defines reductions: the counts, sums and extremes of an array, as values that can be added.

The reduction of two concatenated arrays is the sum of theirs. None means "does not apply", "was not computed" or "there
is no such element", as each attribute states. It never means zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add
from typing import TypeVar

from gradscope.arrays.magnitudes import Magnitudes
from gradscope.arrays.moments import Moments

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """`NonFinite` counts the elements that are not finite.

    Attributes:
        nan: NaNs.
        inf: Infinities of either sign.
        neginf: Negative infinities; None where they were not counted separately.
    """

    nan: int
    inf: int
    neginf: int | None

    def __add__(self, other: NonFinite) -> NonFinite:
        return NonFinite(
            nan=self.nan + other.nan,
            inf=self.inf + other.inf,
            neginf=_if_both(add, self.neginf, other.neginf),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """`Extremes` are those of the finite elements: floats for a floating-point array, exact ints for an integer one.

    Attributes:
        low: The smallest.
        high: The largest.
    """

    low: float
    high: float

    @property
    def amax(self) -> float:
        """The largest magnitude."""
        return max(abs(self.high), abs(self.low))

    def __add__(self, other: Extremes) -> Extremes:
        return Extremes(low=min(self.low, other.low), high=max(self.high, other.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A `Reduction` has the reductions of one array.

    Attributes:
        zeros: Elements equal to zero; None for a dtype that is not a number.
        nonfinite: None for a dtype that has no such elements.
        extremes: None where there are no finite elements.
        moments: None for integers, and where there are no finite elements.
        magnitudes: None for integers, and where they were not computed.
    """

    zeros: int | None = None
    nonfinite: NonFinite | None = None
    extremes: Extremes | None = None
    moments: Moments | None = None
    magnitudes: Magnitudes | None = None

    def __add__(self, other: Reduction) -> Reduction:
        return Reduction(
            zeros=_if_both(add, self.zeros, other.zeros),
            nonfinite=_if_both(add, self.nonfinite, other.nonfinite),
            extremes=_if_any(add, self.extremes, other.extremes),
            moments=_if_any(add, self.moments, other.moments),
            magnitudes=_if_both(add, self.magnitudes, other.magnitudes),
        )


def _if_both(merge: Callable[[_Part, _Part], _Part], left: _Part | None, right: _Part | None) -> _Part | None:
    return None if left is None or right is None else merge(left, right)


def _if_any(merge: Callable[[_Part, _Part], _Part], left: _Part | None, right: _Part | None) -> _Part | None:
    if left is None or right is None:
        return right if left is None else left
    return merge(left, right)
