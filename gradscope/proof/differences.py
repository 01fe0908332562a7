"""`finite_difference` estimates the derivative of a function of one number at zero, with an error estimate.

Central differences have two errors. *Truncation* grows with the square of the step, because the function is not a
parabola (with the step itself where there are kinks nearby). *Rounding* grows with the inverse of the step, because the
function has finite precision. A sequence of shrinking steps separates them: truncation makes the differences of
neighbouring steps disagree, and rounding is known beforehand. The step with the smallest sum of both is used.

A function that is not smooth at any of the steps has differences that agree nowhere, and keep changing as the step
shrinks: an iterated chaotic map, or one that jumps. Differences at two large steps can agree by accident, so an
estimate counts only if no finer difference departs from it.

Why no extrapolation to a step of zero (2026-11): it assumes a function that is smooth up to the largest step, and a
network with thousands of `relu`s has a kink within that distance. Extrapolations then agree by accident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, SupportsFloat

#: Steps are powers of the relative precision, from the exponent `_FIRST` to `_LAST`, by number.
_FIRST: Final = 0.2
_LAST: Final = 0.65
ALL_STEPS: Final = range(12)
#: The steps around the third root of the precision, the best where truncation goes with the square of the step.
USUAL_STEPS: Final = range(2, 5)

#: One-sided differences that differ by more than this fraction of their difference at four times the step show a kink.
_NO_NEARER: Final = 0.6
#: A finer difference departs from an estimate where it is farther away than this many times the estimate's truncation,
#: and this many times its own rounding (values are often less exact than their type).
_DEPARTS_TRUNCATION: Final = 16.0
_DEPARTS_ROUNDING: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimate stores a derivative by finite differences.

    Attributes:
        value: The derivative.
        truncation: The distance of the differences at neighbouring steps.
        rounding: The error from the rounding of the function's values, at the step that was used.
        rough: Whether finer differences depart from all that are known to within half their value: the function is not
            smooth around zero, and has no derivative that differences can show.
    """

    value: float
    truncation: float
    rounding: float
    rough: bool = False

    @property
    def error(self) -> float:
        """The sum of both errors."""
        return self.truncation + self.rounding


def finite_difference(
    function: Callable[[float], SupportsFloat], epsilon: float, steps: Sequence[int] = ALL_STEPS
) -> Estimate:
    """Returns the derivative of a function at zero.

    Args:
        function: A function that is smooth around zero on a scale of 1, except for kinks.
        epsilon: The relative precision of its values.
        steps: The numbers of the steps, at least three, the largest step first.
    """
    central = list(_central(function, epsilon, steps))
    best = lasting = Estimate(value=math.nan, truncation=math.inf, rounding=math.inf)
    for at, (slope, rounding) in enumerate(central[:-2]):
        finer = central[at + 1 :]
        truncation = max(abs(slope - other) for other, _ in finer[:2])
        estimate = Estimate(value=slope, truncation=truncation, rounding=rounding)
        best = min(best, estimate, key=lambda each: each.error)
        if not _departs(estimate, finer):
            lasting = min(lasting, estimate, key=lambda each: each.error)
    return replace(lasting, rough=lasting != best and lasting.truncation > abs(lasting.value) / 2)


def _departs(estimate: Estimate, finer: list[tuple[float, float]]) -> bool:
    """Returns whether a difference at a smaller step contradicts an estimate."""
    return any(
        abs(slope - estimate.value) > _DEPARTS_TRUNCATION * estimate.truncation + _DEPARTS_ROUNDING * rounding
        for slope, rounding in finer
    )


def _central(
    function: Callable[[float], SupportsFloat], epsilon: float, steps: Sequence[int]
) -> Iterator[tuple[float, float]]:
    """Yields the central difference at each step, and its error from rounding."""
    for number in steps:
        step = epsilon ** (_FIRST + (_LAST - _FIRST) * number / (len(ALL_STEPS) - 1))
        # JAX returns before a value is computed, so that both are computed at once.
        above, below = map(float, [function(step), function(-step)])
        yield (above - below) / (2 * step), epsilon * max(abs(above), abs(below)) / step


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSidedDerivatives:
    """OneSidedDerivatives stores the derivatives of a function at zero from below and from above.

    Attributes:
        below: The derivative from below.
        above: The derivative from above.
        differ: Whether they differ by more than rounding, and a smaller step does not reduce the difference.
    """

    below: float
    above: float
    differ: bool

    def include(self, value: float, tolerance: float) -> bool:
        """Returns whether a number is between both derivatives, within a tolerance."""
        low, high = sorted((self.below, self.above))
        return low - tolerance <= value <= high + tolerance


def one_sided_derivatives(function: Callable[[float], SupportsFloat], epsilon: float) -> OneSidedDerivatives:
    """Returns the one-sided derivatives of a function at zero.

    Args:
        function: The function.
        epsilon: The relative precision of its values.
    """

    def at(step: float) -> float:
        return float(function(step))

    here = at(0.0)
    smallest = epsilon**0.45  # small enough to avoid other kinks, large enough for the precision
    (wide_below, wide_above), (below, above) = (
        ((here - at(-step)) / step, (at(step) - here) / step) for step in (4 * smallest, smallest)
    )
    noise = 16 * epsilon * abs(here) / smallest
    apart = abs(above - below)
    return OneSidedDerivatives(
        below=below, above=above, differ=apart > noise and apart > _NO_NEARER * abs(wide_above - wide_below)
    )
