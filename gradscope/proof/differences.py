"""The derivative of a function of one number at zero, by finite differences, and how far it can be trusted.

Central differences err in two ways: with the square of the step, because the function is no parabola (*truncation*;
where it has kinks nearby, with the step), and with its inverse, because the function is only computed to so many digits
(*rounding*). A sequence of shrinking steps tells them apart: what truncation does can be seen, since it makes the
differences of neighbouring steps disagree; what rounding does is known beforehand. The step with the least of both is
taken.

Why no extrapolation to a step of none (2026-11): it takes the function for smooth as far as the largest step goes, and
a network with thousands of `relu`s has a kink on any way of that length. Extrapolations then agree by accident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

#: Steps are powers of the relative precision: the first at the 0.2th, the last at the 0.65th, in so many.
_FIRST: Final = 0.2
_LAST: Final = 0.65
_STEPS: Final = 12

#: By how much two one-sided differences differ where a quarter of the step brings them no nearer: a kink.
_NO_NEARER: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A derivative by finite differences.

    Attributes:
        value: The derivative.
        truncation: How far the differences of neighbouring steps are apart.
        rounding: What the last digits of the function's values make at the step that was taken.
    """

    value: float
    truncation: float
    rounding: float


def derivative(function: Callable[[float], float], epsilon: float) -> Estimate:
    """The derivative of a function at zero.

    Args:
        function: Smooth around zero on a scale of 1, kinks aside.
        epsilon: The relative precision of its values.
    """
    slopes, roundings = zip(*_central(function, epsilon), strict=True)
    best = Estimate(value=math.nan, truncation=math.inf, rounding=math.inf)
    for number in range(_STEPS - 2):
        slope, *smaller = slopes[number : number + 3]
        truncation = max(abs(slope - other) for other in smaller)
        if truncation + roundings[number] < best.truncation + best.rounding:
            best = Estimate(value=slope, truncation=truncation, rounding=roundings[number])
    return best


def _central(function: Callable[[float], float], epsilon: float) -> Iterator[tuple[float, float]]:
    """The central difference at each step, and what rounding may have done to it."""
    for number in range(_STEPS):
        step = epsilon ** (_FIRST + (_LAST - _FIRST) * number / (_STEPS - 1))
        above, below = function(step), function(-step)
        yield (above - below) / (2 * step), epsilon * max(abs(above), abs(below)) / step


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The derivatives of a function at zero from below and from above.

    Attributes:
        below: The one from below.
        above: The one from above.
        differ: Whether a smaller step brings them no nearer to each other, beyond what rounding does.
    """

    below: float
    above: float
    differ: bool

    def include(self, value: float, tolerance: float) -> bool:
        """Whether a number lies between the two, give or take a tolerance."""
        low, high = sorted((self.below, self.above))
        return low - tolerance <= value <= high + tolerance


def sides(function: Callable[[float], float], epsilon: float) -> Sides:
    """The one-sided derivatives of a function at zero.

    Args:
        function: The function.
        epsilon: The relative precision of its values.
    """
    here = function(0.0)
    smallest = epsilon**0.45  # small enough for no other kink, large enough for the digits there are
    (wide_below, wide_above), (below, above) = (
        ((here - function(-step)) / step, (function(step) - here) / step) for step in (4 * smallest, smallest)
    )
    noise = 16 * epsilon * abs(here) / smallest
    apart = abs(above - below)
    return Sides(below=below, above=above, differ=apart > noise and apart > _NO_NEARER * abs(wide_above - wide_below))
