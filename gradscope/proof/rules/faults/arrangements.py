"""`arranged_derivative` tells that a custom rule returns the derivative with its elements in another order.

A kernel that is not flipped, a square matrix that is not transposed, a shift the other way: each number is right, and
in another place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from gradscope.proof.directions import DIRECTIONS
from gradscope.proof.rules.faults.wrong_elements import RuleOfElements

#: Axes beyond these are not looked at: there are more and more ways to arrange them.
_MOST_AXES: Final = 5
#: What is shifted the other way is shifted by twice as much.
_SHIFTS: Final = (1, -1, 2, -2)


def arranged_derivative(rule: RuleOfElements, variable: int) -> str:
    """Returns how the elements of the derivative are arranged in what a rule returns; "" where in no way it is that.

    A rule that returns P g in place of g, for a permutation P of the elements, has the inner product with P d that g
    has with every direction d.

    Args:
        rule: A rule that is wrong for the variable.
        variable: The variable, by its number.
    """
    for words, arranged in _arrangements(rule.operand(variable).shape):
        outcomes = (rule.of_one(variable, arranged=arranged, quickly=True) for _ in range(DIRECTIONS))
        if all(each.status == "correct" for each in outcomes):
            return words
    return ""


def _arrangements(shape: Sequence[int]) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    axes = [axis for axis, length in enumerate(shape[:_MOST_AXES]) if length > 1]
    for first, second in itertools.combinations(axes, 2):
        if shape[first] == shape[second]:
            yield f"with axes {first} and {second} exchanged", partial(np.swapaxes, axis1=first, axis2=second)
    for number in range(1, len(axes) + 1):
        for some in itertools.combinations(axes, number):
            yield f"reversed along {_named(some)}", partial(np.flip, axis=some)
    for axis in axes:
        for shift in _SHIFTS:
            # Of shorter axes, a shift is the same as another one, or as the reverse.
            if shape[axis] > 2 * abs(shift):
                yield f"rolled by {shift} along axis {axis}", partial(np.roll, shift=shift, axis=axis)


def _named(axes: Sequence[int]) -> str:
    *first, last = map(str, axes)
    return f"axes {', '.join(first)} and {last}" if first else f"axis {last}"
