"""Claims: a derivative that automatic differentiation gives, compared with the one that finite differences do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gradscope.proof.differences import Estimate, derivative, sides

#: What became of a claim.
Status: TypeAlias = Literal["correct", "wrong", "not smooth here", "not checked"]

#: How many times what extrapolations are apart, and the rounding of a difference, may be off.
_SAFETY: Final = 16.0
#: What is off in the claim itself: it is computed to so many digits, too.
_ALWAYS: Final = 1e-9
#: A difference that may be off by more says nothing.
_TOO_COARSE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The loss along one direction, and what is claimed of it.

    Attributes:
        at: The loss, a multiple of the direction away.
        claimed: Its derivative at zero as automatic differentiation gives it.
        scale: A typical size of such a derivative, over random directions.
        epsilon: The relative distance of two neighbouring numbers, as the loss is computed.
    """

    at: Callable[[float], float]
    claimed: float
    scale: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a claim.

    Attributes:
        status: Whether it holds.
        error: How far claim and difference are apart, relative to the larger of them and to the scale.
        expected: How far they may be apart for all that differences can tell.
    """

    status: Status
    error: float
    expected: float

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts outcomes by how much they matter."""
        return _RANKS.index(self.status), self.error


_RANKS: Final[Sequence[Status]] = ("not checked", "not smooth here", "correct", "wrong")


def outcome(line: Line, beside: Callable[[], Line]) -> Outcome:
    """Compare a claim with finite differences.

    Args:
        line: The claim.
        beside: The same claim at a point nearby, where what is a tie here is one no longer.
    """
    found = derivative(line.at, line.epsilon)
    result = _compared(line, found)
    if result.status != "wrong":
        return result
    ends = sides(line.at, line.epsilon)
    if not ends.differ:
        return result
    nearby = beside()
    again = _compared(nearby, derivative(nearby.at, nearby.epsilon))
    # Where it has a kink nearby too, as what is tied to itself always has, a claim must lie between the two sides.
    excused = again.status == "correct" or (
        sides(nearby.at, nearby.epsilon).differ and ends.include(line.claimed, result.expected * _size(line, found))
    )
    return replace(result, status="not smooth here") if excused else result


def _compared(line: Line, found: Estimate) -> Outcome:
    if not math.isfinite(found.value):
        return Outcome(status="not checked", error=math.nan, expected=math.inf)
    size = _size(line, found)
    if size == 0:
        return Outcome(status="correct", error=0.0, expected=_ALWAYS)
    error = abs(line.claimed - found.value) / size
    expected = _SAFETY * (found.truncation + found.rounding) / size + _ALWAYS
    if expected > _TOO_COARSE and error <= expected:
        return Outcome(status="not checked", error=error, expected=expected)
    return Outcome(status="correct" if error <= expected else "wrong", error=error, expected=expected)


def _size(line: Line, found: Estimate) -> float:
    return max(abs(line.claimed), abs(found.value), line.scale)
