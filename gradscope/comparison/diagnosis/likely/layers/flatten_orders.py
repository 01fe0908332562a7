"""`FlattenOrders` tells that two programs flatten the axes of one value in other orders, as those of an image.

What is flattened may have an entry, or only the layer that multiplies it by a kernel. In both, the order of the axes is
that in which the elements, or the rows of the kernel, make up the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import PARAM, printable, split_key

#: An order of axes.
_Axes: TypeAlias = tuple[int, ...]

#: The functions that a program may apply to what it flattens, by their words.
_FUNCTIONS: Final[Mapping[str, Elementwise]] = MappingProxyType({"": np.copy, **ELEMENTWISE})

#: The most axes whose orders are tried.
_MOST_AXES: Final = 5

#: The most examples, and columns of a kernel, of which a value is computed.
_MOST_EXAMPLES: Final = 8
_MOST_COLUMNS: Final = 32

#: The relative error up to which a value is that of an order.
_ROUNDING: Final = 1e-5


class FlattenOrders:
    """FlattenOrders finds the orders in which values are flattened.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def words(self, match: Match, read: Sequence[Match]) -> str:
        """Returns a clause about two values that are made of another flattened in other orders; "" where they are not.

        Args:
            match: The pair of the values, of two axes.
            read: The pairs of what they are computed from, parameters among them.
        """
        shape = self._dumps.ref.entry(match.ref).shape
        flattened = [each for each in read if len(shape) == 2 and self._may_be_flattened(each, shape)]
        if len(flattened) != 1:
            return ""
        (image,) = flattened
        values, images = self._both(match), self._both(image)
        if values is None or images is None or values[0].shape != values[1].shape:
            return ""
        params = [each for each in read if split_key(each.ref)[0] == PARAM]
        for function in _FUNCTIONS.values():
            ours, theirs = (
                self._order(value, function(each), params) for value, each in zip(values, images, strict=True)
            )
            if ours is not None and theirs is not None:
                return "" if ours == theirs else self._told(image, ours, theirs)
        return ""

    def _told(self, image: Match, ours: _Axes, theirs: _Axes) -> str:
        name = f"`{printable(split_key(image.ref)[1])}`"
        own, its = ("their order" if each == tuple(sorted(each)) else f"the order {[*each]}" for each in (theirs, ours))
        return f"flattens the axes {sorted(ours)} of {name} in {own}, and the reference in {its}"

    def _may_be_flattened(self, match: Match, shape: Sequence[int]) -> bool:
        read = self._dumps.ref.entry(match.ref).shape
        if split_key(match.ref)[0] == PARAM or not 3 <= len(read) <= _MOST_AXES or read[0] != shape[0]:
            return False
        return sum(size > 1 for size in read[1:]) > 1

    def _both(self, match: Match) -> tuple[Array, Array] | None:
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        return None if one is None or other is None else (one[:_MOST_EXAMPLES], other[:_MOST_EXAMPLES])

    def _order(self, value: Array, image: Array, params: Sequence[Match]) -> _Axes | None:
        """Returns the order of an image's axes in which a value is made of it; None where it is of none."""
        if value.size == image.size:
            orders = ((axes, image.transpose(0, *axes).reshape(value.shape)) for axes in _orders(image))
            return next((axes for axes, made in orders if _is_near(made, value)), None)
        columns = np.arange(value.shape[1])[:: -(-value.shape[1] // _MOST_COLUMNS)]
        kernel = self._kernel(math.prod(image.shape[1:]), value.shape[1], columns, params)
        if kernel is None:
            return None
        biases = (self._ref.tensor(each.ref) for each in params)
        terms = [np.zeros(1), *(each[columns] for each in biases if each is not None and each.shape == value.shape[1:])]
        for axes in _orders(image):
            product = image.transpose(0, *axes).reshape(len(image), -1) @ kernel
            sums = [product + term for term in terms]
            if any(_is_near(made, value[:, columns]) for each in sums for made in _results(each)):
                return axes
        return None

    def _kernel(self, rows: int, count: int, columns: Array, params: Sequence[Match]) -> Array | None:
        """Returns some columns of the only kernel that multiplies rows of one size by as many columns, or None."""
        ref = self._dumps.ref
        shapes = {each.ref: ref.entry(each.ref).shape for each in params if ref.has_tensor(each.ref)}
        kernels = [(key, shape) for key, shape in shapes.items() if shape in ((rows, count), (count, rows))]
        if len(kernels) != 1 or rows == count:
            return None
        (key, shape), *_ = kernels
        kernel = ref.array(key)
        some = kernel[:, columns] if shape == (rows, count) else kernel[columns].T
        return some.astype(np.float64)


def _orders(image: Array) -> Iterator[_Axes]:
    """Yields the orders of all axes of an image but that of the examples, its own first."""
    return permutations(range(1, image.ndim))


def _results(product: Array) -> Iterator[Array]:
    """Yields what a layer may make of its product."""
    yield from (function(product) for function in _FUNCTIONS.values())


def _is_near(made: Array, value: Array) -> bool:
    return bool(np.linalg.norm(made - value) <= _ROUNDING * np.linalg.norm(value))
