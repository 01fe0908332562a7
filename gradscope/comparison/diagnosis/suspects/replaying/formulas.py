"""`Formula` computes the value of a step from what the step reads, and has others that a port may have in its place.

A formula is found by the values: it makes the value of the step of what that reads, to rounding. Formulas of steps that
follow one another compute again what a whole stretch of a program computes (`replaced_steps`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array

#: The relative error up to which a formula makes the value of a step.
_ROUNDING: Final = 1e-5

#: The largest number of axes whose orders are tried.
_MOST_AXES: Final = 4

#: The values of what a step reads, in the order of its sources.
Reads: TypeAlias = Sequence[Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """Formula stores how a step computes its value.

    Attributes:
        words: What is computed, in words.
        apply: Returns the elements of the value, given all that the step reads.
        uses: The positions of what it uses of that.
        others: Formulas that a port may have in its place.
        arranges: Whether it makes the same elements as that in whose place it is, in another order.
        pull_back: Returns the gradient of the first value that it uses, given all that the step reads and the gradient
            of its own; None where that is not known.
    """

    words: str
    apply: Callable[[Reads], Array]
    uses: tuple[int, ...] = ()
    others: tuple[Formula, ...] = ()
    arranges: bool = False
    pull_back: Callable[[Reads, Array], Array] | None = None


def makes(found: Array, value: Array) -> bool:
    """Returns whether what a formula makes is a value, but for rounding.

    Args:
        found: What it makes.
        value: The value.
    """
    if found.size != value.size:
        return False
    return norm_of(found.ravel() - value.ravel()) <= _ROUNDING * norm_of(value)


def norm_of(value: Array) -> float:
    """Returns the l2 norm of a value, by one thread: threads cost more than they save for very many small values.

    Args:
        value: The value.
    """
    return math.sqrt(float(np.square(value).sum()))


def rearrangements(shape: tuple[int, ...]) -> Iterator[Array]:
    """Yields where the elements of a value come from whose axes are joined in another order, or were split in one.

    Args:
        shape: The shape of the value before its axes are joined.
    """
    places, seen = np.arange(int(np.prod(shape))), set[bytes]()
    for order in itertools.permutations(range(len(shape))) if len(shape) <= _MOST_AXES else ():
        joined = places.reshape(shape).transpose(order).ravel()
        for each in (joined, np.argsort(joined)):
            if not np.array_equal(each, places) and each.tobytes() not in seen:
                seen.add(each.tobytes())
                yield each
