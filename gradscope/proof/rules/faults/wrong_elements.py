"""`wrong_elements` tells for which elements of an argument alone a custom rule is wrong.

A branch for negative numbers, a border, a mask that is off by one: the rule is right for all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np

from gradscope.proof.claims import Outcome
from gradscope.proof.directions import DIRECTIONS
from gradscope.proof.rules.faults.wrong_factors import confirmed_factor

#: At more indices of an axis than these, a rule is wrong everywhere as far as a reader is concerned.
_MOST_INDICES: Final = 3


class RuleOfElements(Protocol):
    """`RuleOfElements` is a rule at the operands of one call."""

    def of_one(
        self,
        variable: int,
        returned_for: int | None = None,
        *,
        moving: np.ndarray | None = None,
        arranged: Callable[[np.ndarray], np.ndarray] | None = None,
        quickly: bool = False,
    ) -> Outcome:
        """Returns the outcome along a random direction of one distinct variable.

        Args:
            variable: The variable that moves, by its number.
            returned_for: The variable of the same shape for which the rule returns what is compared, if it is another.
            moving: Which of its elements move, by its shape; None for all.
            arranged: How the elements of what the rule returns are arranged, if otherwise than those of the variable.
            quickly: Whether a wrong claim is held to nothing but few differences: no kink and no solver excuses it.
        """
        ...

    def operand(self, variable: int) -> np.ndarray:
        """Returns the value of a distinct variable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongElements:
    """`WrongElements` are the elements for which alone a rule is wrong.

    Attributes:
        where: Which they are: " where it is negative", " at index 0 of axis 1".
        factor: What the rule returns for them as a multiple of the derivative; NaN where it is no multiple.
        constant: Whether the derivative is zero for them.
    """

    where: str
    factor: float
    constant: bool


def is_zero(outcomes: Iterable[Outcome]) -> bool:
    """Returns whether the derivative is zero that claims along several directions, all of them wrong, are for."""
    return all(each.status == "wrong" and math.isnan(each.factor) for each in outcomes)


def wrong_elements(rule: RuleOfElements, variable: int) -> WrongElements | None:
    """Returns for which elements of a variable alone a rule is wrong; None where it is so for no few.

    Args:
        rule: A rule that is wrong for the variable.
        variable: The variable, by its number.
    """
    # Of the sets outside which the rule is right, the smallest says most.
    smallest = min(_sets(rule, variable), key=lambda each: np.count_nonzero(each[1]), default=None)
    if smallest is None:
        return None
    where, moving = smallest
    outcomes = [rule.of_one(variable, moving=moving) for _ in range(DIRECTIONS)]
    if any(each.status != "wrong" for each in outcomes):
        return None
    factor = confirmed_factor(outcomes, partial(rule.of_one, variable, moving=moving))
    return WrongElements(where=where, factor=factor, constant=is_zero(outcomes))


def _sets(rule: RuleOfElements, variable: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what the elements of a variable have in common, outside which a rule is right, and which they are."""
    operand = rule.operand(variable)
    signs = np.sign(np.real(operand))
    for sign, word in ((1, "positive"), (-1, "negative")):
        others = signs == -sign
        if others.any() and (signs == sign).any() and _is_right(rule, variable, others):
            yield f" where it is {word}", signs == sign
    alone = list(_wrong_indices(rule, variable, operand.shape))
    if alone:
        places = [
            f"{'index' if len(at) == 1 else 'indices'} {' and '.join(map(str, at))} of axis {n}" for n, at in alone
        ]
        yield f" at {' and '.join(places)}", np.logical_and.reduce([_at(operand.shape, *each) for each in alone])


def _wrong_indices(rule: RuleOfElements, variable: int, shape: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields the axes at few indices of which a rule is wrong, and at no others, with the indices."""
    for axis, length in enumerate(shape):
        found: list[int] = []
        parts = [range(length)] if length > 1 else []
        while parts and len(found) <= min(_MOST_INDICES, length - 1):
            part = parts.pop()
            if len(part) < length and _is_right(rule, variable, _at(shape, axis, part)):
                continue
            if len(part) == 1:
                found.append(part[0])
            else:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        if found and len(found) <= min(_MOST_INDICES, length - 1):
            yield axis, tuple(found)


def _at(shape: Sequence[int], axis: int, indices: Sequence[int]) -> np.ndarray:
    moving = np.zeros(shape, bool)
    moving[(slice(None),) * axis + (list(indices),)] = True
    return moving


def _is_right(rule: RuleOfElements, variable: int, moving: np.ndarray) -> bool:
    outcomes = (rule.of_one(variable, moving=moving, quickly=True) for _ in range(DIRECTIONS))
    return all(each.status == "correct" for each in outcomes)
