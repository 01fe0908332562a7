"""`gated_values` yields what may be made of one or two values: a function, or a product of functions.

A gated layer multiplies a function of one value by another value, or by a function of that: `silu(gate) * up`, or
`tanh(filter) * sigmoid(gate)`. Both may be halves of the channels of one value. What squeezes an image and excites its
channels has one number for each of these, `x * sigmoid(gate)`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.functions.possible_functions import Both, PossibleFunctions
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.comparison.layout.layouts import Shape
from gradscope.protocols import implements

#: The functions that may be applied to a value before it is read, by their words.
_FUNCTIONS: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType({"plain value": np.copy, **ELEMENTWISE})

#: Those of either factor of a product.
_NAMES: Final = ("sigmoid", "tanh", "relu", "silu", "gelu by tanh", "gelu by erf", "hard_sigmoid",
                 "hard_sigmoid of slope 0.2")  # fmt: skip
_OF_FACTORS: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType(
    {"": np.copy, **{f"the {name} of ": ELEMENTWISE[name] for name in _NAMES}}
)


def gated_values(values: Sequence[Both], names: Sequence[str]) -> Iterator[PossibleFunctions]:
    """Yields what may be made of values.

    Args:
        values: The values of both programs.
        names: Their names, as they are printed.
    """
    if len(values) == 1:
        yield _Function(values[0], None, names[0])
        yield from _halves(values[0], names[0])
    elif len(values) == 2:
        for one, other in _of_one_shape(*values):
            yield _Function(one, other, f"{names[0]} times {names[1]}")
            yield _Function(other, one, f"{names[1]} times {names[0]}")
            yield _Product(one, other, (names[0], names[1]), "")


class _Function(NamedTuple):
    """_Function is a function of one value, which may be multiplied by another.

    Attributes:
        argument: The value that the function is of.
        factor: The value that it is multiplied by; None where it is by none.
        words: Both in words.
    """

    argument: Both
    factor: Both | None
    words: str

    @implements(PossibleFunctions)
    def functions(self, *, of_own: bool) -> Iterator[tuple[str, Array]]:
        value = self.argument.own if of_own else self.argument.other
        factor = 1.0 if self.factor is None else self.factor.own if of_own else self.factor.other
        return ((f"the {words}", function(value) * factor) for words, function in _FUNCTIONS.items())

    @implements(PossibleFunctions)
    def phrase(self, words: str) -> str:
        return f"{words} of {self.words}"


class _Product(NamedTuple):
    """_Product is a function of one value times a function of another.

    Attributes:
        argument: The first value.
        factor: The second one.
        names: Both in words.
        end: What they are parts of, in words.
    """

    argument: Both
    factor: Both
    names: tuple[str, str]
    end: str

    @implements(PossibleFunctions)
    def functions(self, *, of_own: bool) -> Iterator[tuple[str, Array]]:
        firsts, seconds = (
            [(f"{words}{name}", function(value.own if of_own else value.other))
             for words, function in _OF_FACTORS.items()]
            for name, value in zip(self.names, (self.argument, self.factor), strict=True)
        )  # fmt: skip
        for words, value in firsts:
            for others, other in seconds:
                yield f"{words} times {others}", value * other

    @implements(PossibleFunctions)
    def phrase(self, words: str) -> str:
        return f"{words}{self.end}"


def _of_one_shape(one: Both, other: Both) -> Iterator[tuple[Both, Both]]:
    """Yields two values in the shape of one of them, in which the other may be a gate of whole channels of images."""
    shapes = one.own.shape, other.own.shape
    whole = max(shapes, key=math.prod)
    ways = [dict.fromkeys(_spread(shape, whole)) for shape in shapes]
    for of_one, of_other in itertools.product(*ways):
        yield (
            Both(*(np.broadcast_to(each.reshape(of_one), whole) for each in one)),
            Both(*(np.broadcast_to(each.reshape(of_other), whole) for each in other)),
        )


def _spread(shape: Shape, whole: Shape) -> Iterator[Shape]:
    """Yields the shapes in which a value of one shape is the same along some axes of another."""
    rank = len(whole)
    if len(shape) == rank:
        spread = [shape]
    elif len(shape) == 2 < rank:  # examples and channels, which are the second axis or the last
        spread = [(*shape, *[1] * (rank - 2)), (shape[0], *[1] * (rank - 2), shape[1])]
    else:
        spread = []
    yield from (each for each in spread if all(own in (1, size) for own, size in zip(each, whole, strict=True)))


def _halves(read: Both, words: str) -> Iterator[_Product]:
    """Yields the products of the halves of a value along the axes that its channels may have."""
    for axis in dict.fromkeys((1, read.own.ndim - 1)) if read.own.ndim > 1 else ():
        if read.own.shape[axis] % 2 == 0:
            first, second = (
                Both(own, other)
                for own, other in zip(np.split(read.own, 2, axis), np.split(read.other, 2, axis), strict=True)
            )
            yield _Product(first, second, ("the first half", "the second"), f" of {words}")
