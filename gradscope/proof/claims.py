"""`outcome` compares a claim, a derivative by automatic differentiation, with finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gradscope.proof.differences import Estimate, finite_difference, one_sided_derivatives

#: The outcome of a claim.
Status: TypeAlias = Literal["correct", "wrong", "not smooth here", "not checked"]

#: A claim may differ by this many times the estimated errors of truncation and rounding.
_SAFETY: Final = 16.0
#: The relative error of the claim itself, which is computed in floating point too.
_CLAIM_ERROR: Final = 1e-9
#: A finite difference with a larger relative error is not conclusive.
_TOO_COARSE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claim stores the loss along one direction, and its derivative by automatic differentiation.

    Attributes:
        loss_at: Returns the loss at a multiple of the direction from the point.
        derivative: The derivative at zero by automatic differentiation.
        scale: The typical size of such a derivative over random directions.
        epsilon: The relative distance of two neighbouring numbers in the precision of the loss.
    """

    loss_at: Callable[[float], float]
    derivative: float
    scale: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome stores how a claim compares with finite differences.

    Attributes:
        status: Whether the claim is correct.
        error: The distance of claim and finite difference, relative to the largest of both and the scale.
        expected: The largest such distance that the errors of finite differences explain.
    """

    status: Status
    error: float
    expected: float

    @property
    def rank(self) -> tuple[int, float]:
        """A sort key that orders outcomes by importance, `wrong` last."""
        return _RANKS.index(self.status), self.error


_RANKS: Final[Sequence[Status]] = ("not checked", "not smooth here", "correct", "wrong")


def outcome(claim: Claim, nearby: Callable[[], Claim]) -> Outcome:
    """Returns the outcome of a claim.

    Args:
        claim: The claim.
        nearby: Returns the same claim at a nearby point, where ties of this point are broken.
    """
    found = finite_difference(claim.loss_at, claim.epsilon)
    result = _compared(claim, found)
    if result.status != "wrong":
        return result
    one_sided = one_sided_derivatives(claim.loss_at, claim.epsilon)
    if not one_sided.differ:
        return result
    other = nearby()
    again = _compared(other, finite_difference(other.loss_at, other.epsilon))
    if again.status != "correct":
        # There can be a kink nearby too, such as a maximum of a value and itself. Then a correct claim is between the
        # one-sided derivatives.
        kink_nearby = one_sided_derivatives(other.loss_at, other.epsilon).differ
        if not (kink_nearby and one_sided.include(claim.derivative, result.expected * _size(claim, found))):
            return result
    return replace(result, status="not smooth here")


def _compared(claim: Claim, found: Estimate) -> Outcome:
    if not math.isfinite(found.value):
        return Outcome(status="not checked", error=math.nan, expected=math.inf)
    size = _size(claim, found)
    if size == 0:
        return Outcome(status="correct", error=0.0, expected=_CLAIM_ERROR)
    error = abs(claim.derivative - found.value) / size
    expected = _SAFETY * (found.truncation + found.rounding) / size + _CLAIM_ERROR
    if expected > _TOO_COARSE and error <= expected:
        return Outcome(status="not checked", error=error, expected=expected)
    return Outcome(status="correct" if error <= expected else "wrong", error=error, expected=expected)


def _size(claim: Claim, found: Estimate) -> float:
    return max(abs(claim.derivative), abs(found.value), claim.scale)
