"""`Halves` is a function of one half of a value's channels times a function of the other, as a gated unit reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered

#: The functions that are applied to a half, in words.
_NAMES: Final = ("sigmoid", "tanh", "relu", "silu", "gelu by tanh", "gelu by erf", "hard_sigmoid",
                 "hard_sigmoid of slope 0.2")  # fmt: skip
_FUNCTIONS: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType(
    {"": np.copy, **{f"{name} of the ": ELEMENTWISE[name] for name in _NAMES}}
)


class Halves(NamedTuple):
    """Halves has both halves of a value of both programs.

    Attributes:
        argument: The first half.
        factor: The second one.
        words: The value, in words.
    """

    argument: Recovered
    factor: Recovered
    words: str

    def functions(self) -> Iterator[tuple[str, Array]]:
        """Yields products of functions of the halves of the own program, by their words."""
        return _products(self.argument.own, self.factor.own)

    def functions_of_other(self) -> Iterator[tuple[str, Array]]:
        """Yields products of functions of the halves of the other program, by their words."""
        return _products(self.argument.other, self.factor.other)


def halves_of(read: Recovered, words: str) -> Iterator[Halves]:
    """Yields the halves of a value along the axes that its channels may have.

    Args:
        read: The value.
        words: The value, in words.
    """
    for axis in dict.fromkeys((1, read.own.ndim - 1)) if read.own.ndim > 1 else ():
        if read.own.shape[axis] % 2 == 0:
            first, second = (
                Recovered(own, other)
                for own, other in zip(np.split(read.own, 2, axis), np.split(read.other, 2, axis), strict=True)
            )
            yield Halves(first, second, words)


def _products(first: Array, second: Array) -> Iterator[tuple[str, Array]]:
    made = [[(words, function(half)) for words, function in _FUNCTIONS.items()] for half in (first, second)]
    for words, value in made[0]:
        for others, other in made[1]:
            yield f"{words}first half times the {others}second", value * other
