"""`outcome` compares a claim, a derivative by automatic differentiation, with finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, SupportsFloat, TypeAlias

from gradscope.proof.differences import USUAL_STEPS, Estimate, finite_difference, one_sided_derivatives
from gradscope.proof.solvers.solver_tolerance import Tightening

#: The outcome of a claim.
Status: TypeAlias = Literal["correct", "wrong", "excused", "not smooth here", "not checked"]

#: What a derivative is that is no finite number; "" of all others.
NotFinite: TypeAlias = Literal["NaN", "infinite", ""]

#: A claim may differ by this many times the estimated errors of truncation and rounding.
_SAFETY: Final = 16.0
#: The relative error of the claim itself, which is computed in floating point too.
_CLAIM_ERROR: Final = 1e-9
#: A finite difference with a larger relative error is not conclusive.
TOO_COARSE: Final = 0.05
#: A claim that is so close to the differences at three steps, themselves ten times as close or closer, needs no others.
_CLOSE: Final = 1e-7
#: A derivative is zero but for rounding up to this part of the loss, where differences show none of more than that.
_ZERO: Final = 1e-13
_UNSEEN: Final = 1e-6
#: An error that shrinks to this part of itself with the solvers' tolerance comes from the solvers.
_SHRUNK: Final = 1 / 10
#: One that is more than this many times as large is another error.
_ANOTHER: Final = 100.0
#: An error up to this one may come from solvers that cannot run to a smaller tolerance, as their own rounding allows.
_UNPROVEN: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claim stores the loss along one direction, and its derivative by automatic differentiation.

    Attributes:
        loss_at: Returns the loss at a multiple of the direction from the point.
        derivative: The derivative at zero by automatic differentiation.
        scale: The typical size of such a derivative over random directions.
        epsilon: The relative distance of two neighbouring numbers in the precision of the loss.
        hides_solvers: Whether the loss has iterative solvers that cannot be made to run longer.
    """

    loss_at: Callable[[float], SupportsFloat]
    derivative: float
    scale: float
    epsilon: float
    hides_solvers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome stores how a claim compares with finite differences.

    Attributes:
        status: Whether the claim is correct.
        error: The distance of claim and finite difference, relative to the largest of both and the scale.
        expected: The largest such distance that the errors of finite differences explain.
        factor: The claim as a multiple of the finite difference; NaN where that is zero but for its errors.
        longer: Likewise with solvers that run longer, in each of the ways in which they may.
        not_finite: What the claim is, if it is no finite number and the finite difference is one.
        zero: Whether the derivative is zero but for the rounding of the loss, to which error and expected are relative.
        solved: Whether the error may be that of an iterative solver, which nothing shows: a "small" one, or one of any
            size where what the solver returns "jumps"; "" where it is not.
    """

    status: Status
    error: float
    expected: float
    factor: float = math.nan
    longer: tuple[float, ...] = ()
    not_finite: NotFinite = ""
    zero: bool = False
    solved: Literal["small", "jumps", ""] = ""

    @property
    def rank(self) -> tuple[int, float]:
        """A sort key that orders outcomes by importance, `wrong` last."""
        return _RANKS.index(self.status), self.error


_RANKS: Final[Sequence[Status]] = ("not checked", "not smooth here", "correct", "excused", "wrong")


def outcome(
    claim: Claim,
    nearby: Callable[[], Claim],
    tightened: Mapping[Tightening, Callable[[], Claim]] = MappingProxyType({}),
    tolerance: float = 0.0,
) -> Outcome:
    """Returns the outcome of a claim.

    Args:
        claim: The claim.
        nearby: Returns the same claim at a nearby point, where ties of this point are broken.
        tightened: Functions that return the same claim with solvers that run to a smaller tolerance.
        tolerance: The relative error that a claim may have in any case.
    """
    claim = replace(claim, loss_at=cache(claim.loss_at))
    usual = usual_outcome(claim, tolerance)
    if usual.status == "correct" and usual.error <= _CLOSE and usual.expected <= 10 * _CLOSE:
        return usual
    found = finite_difference(claim.loss_at, claim.epsilon)
    result = _as_zero(claim, found) or _compared(claim, found, tolerance)
    if found.rough and result.status != "correct":
        return replace(result, status="not smooth here")
    # Unclear differences, as where the number of a solver's steps jumps, may be clear where it runs longer.
    if not (result.status == "wrong" or (tightened and TOO_COARSE < result.expected < math.inf)):
        return result
    result = _by_solvers(_Level(claim, found, result), tightened, tolerance)
    return _at_kinks(claim, found, result, nearby) if result.status == "wrong" else result


def usual_outcome(claim: Claim, tolerance: float = 0.0) -> Outcome:
    """Returns the outcome of a claim, which may have a relative error, by few differences that nothing explains."""
    return _compared(claim, finite_difference(claim.loss_at, claim.epsilon, USUAL_STEPS), tolerance)


def _at_kinks(claim: Claim, found: Estimate, result: Outcome, nearby: Callable[[], Claim]) -> Outcome:
    """Returns the outcome of a claim that seems wrong, which is no fault of it where its function has a kink."""
    one_sided = one_sided_derivatives(claim.loss_at, claim.epsilon)
    if not one_sided.differ or result.not_finite == "NaN":  # which is no derivative of a kink, either
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


class _Level(NamedTuple):
    """A `_Level` is a claim with the usual solvers or those that run longer, its difference, and how both compare."""

    claim: Claim
    there: Estimate
    compared: Outcome

    @property
    def apart(self) -> float:
        """How much larger the claim is than the difference, relative to the size of both."""
        return (self.claim.derivative - self.there.value) / _size(self.claim, self.there)


def _by_solvers(usual: _Level, tightened: Mapping[Tightening, Callable[[], Claim]], tolerance: float) -> Outcome:
    """Returns the outcome with the first solvers that prove a claim, or else with the first that explain its error.

    A small error that none of them shows again, and none explains, proves nothing: an integrator goes elsewhere when it
    runs longer. It may be small along one direction by chance, where that of claim and differences happen to be alike;
    so what shrinks is the largest error so far. What solvers that have come to their end leave of it is the rule's.
    """
    first, result, known = None, usual.compared, usual.claim
    levels, shown = dict[Tightening, _Level](), list[bool]()
    largest = last = result.error
    for tightening, make in tightened.items():
        if tightening == "most repetitions" and last > largest / 2:
            break  # the error stays where it is, however long the solvers run
        tighter = make()
        there = finite_difference(tighter.loss_at, tighter.epsilon)
        ended = not math.isfinite(tighter.derivative)  # a solver of the rule divides zeros beyond its solution
        known = replace(tighter, derivative=known.derivative) if ended else tighter
        again = _compared(known, there, tolerance)
        levels[tightening] = level = _Level(known, there, again)
        explained = _with_solvers(usual, level, largest=largest)
        first = explained if explained is not None and (first is None or first.status != "correct") else first
        if first is not None and first.status == "correct" and again.status != "wrong":
            break
        last, moved, ran_longer = again.error, _moved(usual, level), "repetitions" in tightening
        wrong = again.status == "wrong" and not (there.rough or ended)
        largest = max(largest, last) if wrong and moved <= TOO_COARSE else largest  # farther, a loop may be no solver
        shown.append(wrong and (ran_longer or moved > 0) and result.error / 2 < last <= _ANOTHER * result.error)
    factors = tuple(each.compared.factor for each in levels.values())
    if first is None and ((shown and not any(shown)) or usual.claim.hides_solvers) and result.error <= _UNPROVEN:
        return replace(result, status="not checked", expected=_UNPROVEN, solved="small")
    first = first or _unsettled(usual, levels)
    if first is not None and (first.status != "correct" or not _leave_error(levels)):
        return replace(first, longer=factors)
    if first is None and _jumps(usual, levels.values()):
        return replace(result, status="not checked", expected=result.error, longer=factors, solved="jumps")
    return replace(result, longer=factors)


def _jumps(usual: _Level, levels: Iterable[_Level]) -> bool:
    """Returns whether a solution jumps, as of a bisection: differences are zero, and remain so or become unclear."""
    most = TOO_COARSE * _size(usual.claim, usual.there)
    moved = [each for each in levels if 0 < abs(usual.claim.derivative - each.claim.derivative) <= most]
    seen = [
        each for each in moved if each.there.value and not each.there.rough and each.compared.status != "not checked"
    ]
    return bool(moved) and usual.there.value == 0 and not seen


def _unsettled(usual: _Level, levels: Mapping[Tightening, _Level]) -> Outcome | None:
    """Returns the outcome of a claim whose error is small beside those of slow solvers; None where it is not.

    Where the solvers run longest, claim and difference are far less apart than they have moved, and still move: an
    error of the rule would stay where it is.
    """
    if not {"many repetitions", "most repetitions"} <= levels.keys():
        return None
    before, last = levels["many repetitions"], levels["most repetitions"]
    result, moved, moving = usual.compared, _moved(usual, last), _moved(before, last)
    expected = result.expected + last.compared.expected + last.compared.error + moved
    less = last.compared.error <= _SHRUNK * moved and moving > _SHRUNK * last.compared.error
    known = less and result.error <= moved and not last.there.rough and expected <= TOO_COARSE
    return replace(result, status="correct", expected=expected) if known else None


def _leave_error(levels: Mapping[Tightening, _Level]) -> bool:
    """Returns whether solvers have come to their end and leave an error.

    All ways in which they run longer have to leave it, as one may be for the solver of the rule or its function alone,
    and those that repeat most have to repeat nothing new: a solver may be slow.
    """
    if not {"many repetitions", "most repetitions"} <= levels.keys():
        return False
    before, last = levels["many repetitions"], levels["most repetitions"]
    ends = [levels[each] for each in ("further", "most repetitions") if each in levels]
    wrong = all(each.compared.status == "wrong" and not each.there.rough for each in ends)
    still = _moved(before, last) <= _SHRUNK * last.compared.error
    return wrong and still and all(abs(each.apart - last.apart) <= _SHRUNK * last.compared.error for each in ends)


def _moved(usual: _Level, tighter: _Level) -> float:
    """Returns how far solvers move a claim and its finite difference, relative to the size of both."""
    of_claim = abs(usual.claim.derivative - tighter.claim.derivative)
    return (of_claim + abs(usual.there.value - tighter.there.value)) / _size(usual.claim, usual.there)


def _with_solvers(usual: _Level, tighter: _Level, *, largest: float) -> Outcome | None:
    """Returns the outcome of a claim whose error comes from solvers; None where it does not.

    It does where their largest error shrinks with the solvers' tolerance. By the triangle inequality, a claim is as far
    from the finite difference as the solvers move both, and as far as both are apart afterwards. Where the solution
    jumps, as that of a bisection, its differences show nothing, and the claim is held to those of the better solution.
    """
    again, result = _compared(tighter.claim, tighter.there), usual.compared
    # What is expected has a large margin of safety, so differences that are not expected to be better than the error
    # itself still show that it is gone.
    if tighter.there.rough or again.expected > largest or not again.error <= _SHRUNK * largest:
        return None
    moved = abs(usual.claim.derivative - tighter.claim.derivative) / _size(usual.claim, usual.there)
    expected = again.expected + moved
    with_differences = result.expected + again.expected + again.error + _moved(usual, tighter)
    if with_differences <= TOO_COARSE:
        return replace(result, status="correct", expected=with_differences)
    error = abs(usual.claim.derivative - tighter.there.value) / _size(usual.claim, usual.there)
    if error <= expected <= TOO_COARSE:
        return replace(result, status="correct", error=error, expected=expected)
    if again.error > expected and moved <= _SHRUNK * again.error:
        return None  # the claim is what it would be with an exact solver, and still not the derivative
    return replace(result, status="not checked", expected=with_differences)


def _as_zero(claim: Claim, found: Estimate) -> Outcome | None:
    """Returns the outcome of a claim of zero, as that of a bias before a norm or of keys, and None for any other.

    Its relative error is that of one rounding to another. Nor can the loss show a derivative of this size.
    """
    size = abs(float(claim.loss_at(0.0)))
    largest = max(abs(claim.derivative), claim.scale)
    error, expected = abs(claim.derivative - found.value), _SAFETY * found.error
    if not (0 < largest <= _ZERO * size and error <= expected <= _UNSEEN * size):
        return None
    return Outcome(status="correct", error=error / size, expected=expected / size, zero=True)


def _compared(claim: Claim, found: Estimate, tolerance: float = 0.0) -> Outcome:
    if not math.isfinite(found.value):
        return Outcome(status="not checked", error=math.nan, expected=math.inf)
    if not math.isfinite(claim.derivative):
        # Infinite elements of both signs add up to NaN, and to an infinite size.
        kind = "infinite" if math.isinf(claim.scale) else "NaN"
        return Outcome(status="wrong", error=math.nan, expected=math.nan, not_finite=kind)
    size = _size(claim, found)
    if size == 0:
        return Outcome(status="correct", error=0.0, expected=_CLAIM_ERROR)
    error = abs(claim.derivative - found.value) / size
    explained = _SAFETY * found.error / size + _CLAIM_ERROR
    if explained > TOO_COARSE and error <= explained:
        return Outcome(status="not checked", error=error, expected=explained)
    expected = max(explained, tolerance)
    factor = claim.derivative / found.value if abs(found.value) > _SAFETY * found.error else math.nan
    status: Status = "correct" if error <= expected else "wrong"
    return Outcome(status=status, error=error, expected=expected, factor=factor)


def _size(claim: Claim, found: Estimate) -> float:
    return max(abs(claim.derivative), abs(found.value), claim.scale)
