"""`dense_formulas` finds the formula of a dense layer, with a function of its product or a value beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.comparison.diagnosis.refuting.apart.correlations import matrices
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads, makes, rearrangements

#: The functions that may be applied to a product, by their words.
_FUNCTIONS: Final = {"product": np.copy} | {f"{name} of the product": each for name, each in ELEMENTWISE.items()}

#: The largest number of products that are computed, and of elements of which functions are tried.
_MOST_PRODUCTS: Final = 1 << 24
_MOST_ELEMENTS: Final = 1 << 16


class _Dense(NamedTuple):
    """_Dense has what a dense layer uses of what it reads, by its positions, and how.

    Attributes:
        read: What is multiplied.
        kernel: The kernel.
        biases: What is added to the product.
        beside: What is added to the function of the product; None where nothing is.
        inputs: The number of inputs of the kernel.
        turned: Whether the kernel has its outputs first.
        parts: The number of parts of the features of which one is read.
        part: Which of them is read.
        function: The function of the product.
    """

    read: int
    kernel: int
    biases: tuple[int, ...]
    beside: int | None
    inputs: int
    turned: bool
    parts: int
    part: int = 0
    function: str = "product"

    def value(self, reads: Reads, *, order: Array | None = None) -> Array:
        """Returns the value.

        Args:
            reads: All that is read.
            order: Where the features are taken from that are read as one; None for their own order.
        """
        kernel, read = reads[self.kernel], reads[self.read]
        matrix = kernel.reshape(-1, self.inputs).T if self.turned else kernel.reshape(self.inputs, -1)
        if order is not None:
            read = read.reshape(-1, order.size)[:, order]
        product = read.reshape(-1, self.parts, self.inputs)[:, self.part] @ matrix
        for bias in self.biases:
            product = product + reads[bias].ravel()
        made = _FUNCTIONS[self.function](product).ravel()
        return made if self.beside is None else made + reads[self.beside].ravel()

    def formula(self, reads: Reads) -> Formula:
        """Returns the formula, with those that may be in its place."""
        uses = (self.read, self.kernel, *self.biases, *(() if self.beside is None else (self.beside,)))
        return Formula(words=self.function, apply=self.value, uses=uses, others=tuple(self._others(reads)))

    def _others(self, reads: Reads) -> Iterator[Formula]:
        for function in (each for each in _FUNCTIONS if each != self.function):
            yield Formula(words=function, apply=self._replace(function=function).value)
        if self.biases:
            yield Formula(words=f"{self.function} without bias", apply=self._replace(biases=()).value)
        if self.beside is not None:
            yield Formula(words=f"{self.function} alone", apply=self._replace(beside=None).value)
        for part in (part for part in range(self.parts) if part != self.part):
            yield Formula(words=f"{self.function} of other features", apply=self._replace(part=part).value)
        if len(reads[self.kernel]) == self.inputs == reads[self.kernel].size // self.inputs:
            words = f"{self.function} with the kernel transposed"
            yield Formula(words=words, apply=self._replace(turned=not self.turned).value)
        joined = _joined(reads[self.read].shape, self.inputs)
        for order in rearrangements(joined) if joined else ():
            words = f"{self.function} of the same features in another order"
            yield Formula(words=words, apply=partial(self.value, order=order))


def _joined(shape: tuple[int, ...], inputs: int) -> tuple[int, ...]:
    """Returns the last axes of a shape that are joined to the inputs of a kernel; none where that is one axis."""
    for axis in range(len(shape) - 1):
        if math.prod(shape[axis:]) == inputs:
            return shape[axis:]
    return ()


def dense_formulas(reads: Reads, value: Array) -> Iterator[Formula]:
    """Yields the formula of a dense layer.

    Args:
        reads: What a step reads, its parameters among that.
        value: What it computes.
    """
    for dense in _possible(reads, value):
        functions = _FUNCTIONS if value.size <= _MOST_ELEMENTS else {dense.function}
        for function in functions:
            found = dense._replace(function=function)
            if makes(found.value(reads), value):
                yield found.formula(reads)


def _possible(reads: Reads, value: Array) -> Iterator[_Dense]:
    """Yields the dense layers that shapes allow, without a function."""
    places = range(len(reads))
    for kernel in (at for at in places if reads[at].ndim > 1):
        for inputs, outputs in matrices(reads[kernel].shape):
            for (size, width), turned in (((inputs, outputs), False), ((outputs, inputs), True)):
                rows = value.size // width
                if rows * width != value.size or value.size * size > _MOST_PRODUCTS:
                    continue
                biased = tuple(at for at in places if at != kernel and reads[at].size == width and reads[at].ndim < 3)
                for read in (at for at in places if at != kernel and reads[at].size % (rows * size) == 0):
                    parts = reads[read].size // (rows * size)
                    if parts > 1 and reads[read].shape[-1] != parts * size:
                        continue
                    beside = [at for at in places if at not in (kernel, read) and reads[at].size == value.size]
                    for bias, other in itertools.product(_subsets(biased, read), (None, *beside)):
                        if other not in bias:
                            for part in range(parts):
                                yield _Dense(read, kernel, bias, other, size, turned, parts, part)


def _subsets(places: tuple[int, ...], read: int) -> list[tuple[int, ...]]:
    rest = [at for at in places if at != read]
    return [*((at,) for at in rest), ()]
