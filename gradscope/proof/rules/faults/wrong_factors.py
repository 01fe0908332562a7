"""`confirmed_factor` tells by which number a rule is wrong along all directions, `complex_factor` by which complex one.

JAX's gradient of a real function of a complex number is the conjugate of what other libraries return, and a rule that
was written for those is wrong by that. A real factor is seen along one direction. A complex one turns it: with a factor
a + ib, a rule's derivative along d is a times the derivative along d, and b times that along id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from gradscope.proof.claims import TOO_COARSE, Outcome
from gradscope.proof.directions import DIRECTIONS

#: Parts of a factor that are smaller than this, relative to the whole, are zero.
_NO_PART: Final = 1e-6
#: Factors that differ by less than this besides their errors are one.
_SAME_FACTOR: Final = 1e-4
#: How far apart factors may be that solvers hide, as a share of how far one is from one.
_OF_FACTOR: Final = 0.1


def confirmed_factor(outcomes: Sequence[Outcome], further: Callable[[], Outcome]) -> float:
    """Returns the factor that wrong claims have in common along one direction more, too; NaN where they have none.

    Where each example has a factor of its own, two directions may agree by chance.

    Args:
        outcomes: The claims along several directions.
        further: Returns that along another.
    """
    factor = common_factor(outcomes)
    return factor if math.isnan(factor) else common_factor([*outcomes, further()])


def common_factor(outcomes: Sequence[Outcome]) -> float:
    """Returns the factor that wrong claims along several directions have in common; NaN where they have none.

    A claim may be within its tolerance along a direction in which it counts for little, and be wrong along another.
    The error of solvers hides a factor, and is smaller where they run longer; so the factors that agree best count, of
    those that are near the first: a loop that is no solver computes something else where it runs longer. They have to
    agree far better than they are apart from one, as an error of some elements alone has any factor, and relative to
    what they are: what a rule clips to almost nothing has any small one.
    """
    found = {each.status for each in outcomes}
    if "wrong" not in found or not found <= {"wrong", "correct"}:
        return math.nan
    ways = list(zip(*((each.factor, *each.longer) for each in outcomes), strict=False))
    first = ways[0][0]
    solved = any(each.longer for each in outcomes)
    known = (way for way in ways if all(map(math.isfinite, way)))
    near = (way for way in known if not abs(way[0] - first) > TOO_COARSE * max(1.0, abs(first)))
    errors = sum(each.expected for each in outcomes if each.status == "wrong" or not each.longer) + _SAME_FACTOR

    def most(way: Sequence[float]) -> float:
        return min(errors, _OF_FACTOR * abs(way[0] - 1)) if solved else errors * abs(way[0])

    alike = [way for way in near if max(way) - min(way) <= most(way)]
    return min(alike, key=lambda way: max(way) - min(way))[0] if alike else math.nan


def rounded_factor(factor: float) -> float:
    """Returns a factor to six digits, or to as many as tell it from one."""
    apart = abs(factor - 1.0)
    digits = max(6, 2 - math.floor(math.log10(apart))) if 0 < apart < 1 else 6
    return float(f"{factor:.{digits}g}") + 0.0  # a zero without a sign


class RuleOfComplex(Protocol):
    """`RuleOfComplex` is a rule at the operands of one call."""

    def turned(self, variable: int, turns: Sequence[complex], *, conjugated: bool, of_real: bool) -> list[Outcome]:
        """Returns how the derivative along a random direction of one variable compares with those along turned ones.

        Args:
            variable: The variable that moves, by its number.
            turns: What the direction is multiplied by.
            conjugated: Whether it is the conjugate of the direction that is turned.
            of_real: Whether the gradients that arrive are real.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplexFactor:
    """A `ComplexFactor` is what a rule returns as a multiple of the derivative.

    Attributes:
        value: The factor.
        conjugated: Whether it is that of the derivative's conjugate.
        of_real: Whether that is so of real gradients that arrive.
    """

    value: complex
    conjugated: bool
    of_real: bool

    def __str__(self) -> str:
        times = "" if self.value == 1 else f"{_shown(self.value)} times "
        conjugate = "the conjugate of " if self.conjugated else ""
        return f"{times}{conjugate}the derivative{', where what arrives is real' if self.of_real else ''}"


def complex_factor(rule: RuleOfComplex, variable: int) -> ComplexFactor | None:
    """Returns the factor of a wrong rule for one complex variable, the simplest if any; None where it has none.

    Of numbers with one phase, what turns each by it is a multiple too, and no simple one.

    Args:
        rule: The rule at the operands of one call.
        variable: The variable, by its number.
    """
    return min(_factors(rule, variable), key=_complexity, default=None)


def _factors(rule: RuleOfComplex, variable: int) -> Iterator[ComplexFactor]:
    for conjugated, of_real in ((False, False), (True, False), (True, True)):
        pairs = [rule.turned(variable, (1, 1j), conjugated=conjugated, of_real=of_real) for _ in range(2)]
        factors = np.array([[each.factor for each in pair] for pair in pairs])
        if not np.isfinite(factors).all() or not factors.all() or np.linalg.matrix_rank(1 / factors) < len(pairs):
            continue
        turn = complex(*np.linalg.solve(1 / factors, np.ones(len(pairs))))
        found = (rule.turned(variable, (turn,), conjugated=conjugated, of_real=of_real) for _ in range(DIRECTIONS))
        if all(each.status == "correct" for (each,) in found):
            value = np.conj(turn) if conjugated else turn
            yield ComplexFactor(value=_rounded(complex(value)), conjugated=conjugated, of_real=of_real)


def _complexity(factor: ComplexFactor) -> int:
    value = factor.value
    return 0 if abs(value.real) == 1 and not value.imag else 1 if not value.imag else 2 if not value.real else 3


def _rounded(factor: complex) -> complex:
    parts = (part if abs(part) > _NO_PART * abs(factor) else 0.0 for part in (factor.real, factor.imag))
    return complex(*(float(f"{part:.6g}") for part in parts))


def _shown(factor: complex) -> str:
    if not factor.imag:
        return f"{factor.real:.6g}"
    return f"{factor.imag:.6g}j" if not factor.real else f"({factor.real:.6g}{factor.imag:+.6g}j)"
