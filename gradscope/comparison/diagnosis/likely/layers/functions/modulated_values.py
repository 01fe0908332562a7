"""`modulated_values` yields a value times a factor, plus a shift, which are parts of another value or two others.

A condition scales and shifts all positions of a value alike, as in FiLM (Perez et al., 2018), squeeze-and-excitation,
and the adaptive norms of diffusion models. Programs differ in whether 1 is added to the factor, and in which part is
which. A layer may read that, or an activation function of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.functions.possible_functions import Both, PossibleFunctions
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.protocols import implements

#: The words of the parts of a condition, by their number.
_PARTS: Final[Mapping[int, Sequence[str]]] = MappingProxyType({
    1: ("",),
    2: ("the first half of ", "the second half of "),
    **{count: [f"part {number} of {count} of " for number in range(1, count + 1)] for count in range(3, 7)},
})  # fmt: skip

#: What may be made of a part before the value is multiplied by it, by its words.
_FACTORS: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType({
    "": np.copy,
    "1 + ": lambda x: 1 + x,
    "the exponential of ": np.exp,
    "the sigmoid of ": ELEMENTWISE["sigmoid"],
})  # fmt: skip

#: The functions that may be applied to what is made, by their names.
_APPLIED: Final = ("relu", "silu", "gelu by tanh", "gelu by erf")

#: The most elements of a value.
_MOST_ELEMENTS: Final = 1 << 16


def modulated_values(values: Sequence[Both], names: Sequence[str]) -> Iterator[PossibleFunctions]:
    """Yields what may be made of a value and a condition, which may have parts, or of a value and two conditions.

    Args:
        values: The values of both programs.
        names: Their names, as they are printed.
    """
    if not 2 <= len(values) <= 3:
        return
    for at, value in enumerate(values):
        others = [(values[other], names[other]) for other in range(len(values)) if other != at]
        axes = (1, value.own.ndim - 1) if value.own.ndim >= 2 and value.own.size <= _MOST_ELEMENTS else ()
        for axis in dict.fromkeys(axes):
            if parts := _parts(others, value.own.shape, axis):
                yield _Modulated(value, names[at], parts, ())
                yield _Modulated(value, names[at], parts, _APPLIED)


def _parts(others: Sequence[tuple[Both, str]], shape: Sequence[int], axis: int) -> Mapping[str, Both]:
    """Returns the parts of conditions that have one number for each example and channel of a value, by their words."""
    spread = tuple(size if place in (0, axis) else 1 for place, size in enumerate(shape))
    found: dict[str, Both] = {}
    for both, name in others:
        count, rest = divmod(both.own.size, shape[0] * shape[axis])
        if rest or both.own.shape[0] != shape[0] or count not in ({1} if len(others) > 1 else _PARTS):
            return {}
        sides = (np.split(each.reshape(shape[0], -1), count, axis=1) for each in both)
        for words, own, other in zip(_PARTS[count], *sides, strict=True):
            found[f"{words}{name}"] = Both(own.reshape(spread), other.reshape(spread))
    return found


class _Modulated(NamedTuple):
    """_Modulated is a value times a part of a condition, plus another.

    Attributes:
        argument: The value.
        name: Its name.
        parts: The parts, by their words.
        applied: The functions that may be applied to it; empty for it alone.
    """

    argument: Both
    name: str
    parts: Mapping[str, Both]
    applied: Sequence[str]

    @implements(PossibleFunctions)
    def functions(self, *, of_own: bool) -> Iterator[tuple[str, Array]]:
        for words, made in self._modulated(0 if of_own else 1):
            if not self.applied:
                yield words, made
            for name in self.applied:
                yield f"the {name} of {words}", ELEMENTWISE[name](made)

    def _modulated(self, side: int) -> Iterator[tuple[str, Array]]:
        for words, part in self.parts.items():
            if not self.applied or part.own.shape != self.argument.own.shape:  # a function of a sum is known as such
                yield f"{self.name} plus {words}", self.argument[side] + part[side]
            for made, function in _FACTORS.items():
                scaled, told = self.argument[side] * function(part[side]), f"{self.name} times {made}{words}"
                yield told, scaled
                yield from (
                    (f"{told} plus {shift}", scaled + added[side])
                    for shift, added in self.parts.items() if shift != words
                )  # fmt: skip

    @implements(PossibleFunctions)
    def phrase(self, words: str) -> str:
        return words
