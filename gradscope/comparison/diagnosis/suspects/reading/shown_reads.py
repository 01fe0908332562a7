"""`ShownReads` tells which of several values a layer reads in both programs, as the gradient of its kernel shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.functions.function_differences import nearest
from gradscope.comparison.diagnosis.likely.layers.functions.possible_functions import PossibleFunctions
from gradscope.comparison.diagnosis.refuting.apart.correlations import KernelForm, forms, gradient_error
from gradscope.comparison.diagnosis.step_kinds import orders
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered

#: The relative error up to which a gradient is made of what is read.
_FITS: Final = 1e-4

#: The most elements of a value of which functions are tried, and of products that each of them takes.
_MOST_ELEMENTS: Final = 1 << 17
_MOST_PRODUCTS: Final = 1 << 26


class ShownReads:
    """ShownReads finds what a layer reads by the gradient of its kernel.

    Args:
        gradients: The gradients of its parameters, of both programs.
        value: Its output.
        arriving: The gradient of that.
    """

    def __init__(self, gradients: Sequence[Recovered], value: Recovered, arriving: Recovered) -> None:
        self._gradients, self._value, self._arriving = gradients, value, arriving

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        return self._value.own.shape

    def functions(self, possible: PossibleFunctions) -> tuple[str, str] | None:
        """Returns which functions are read in the own program and in the other, in words; None if not others.

        Args:
            possible: The functions that may be read.
        """
        for gradient, form in self._near(possible.argument.own):
            own = _fitting(form, possible.functions(of_own=True), self._arriving.own, gradient.own)
            functions = possible.functions(of_own=False) if own else ()
            other = _fitting(form, functions, self._arriving.other, gradient.other)
            if other and own.keys().isdisjoint(other):
                return nearest(own), nearest(other)
        return None

    def turned(self, read: Recovered) -> tuple[str, str] | None:
        """Returns how a value is read in the own program and in the other where only one of them turns it; else None.

        Args:
            read: The value.
        """
        own, other = (dict(_turned(side)) for side in read)
        for gradient, form in self._near(read.own):
            one = _fitting(form, own.items(), self._arriving.own, gradient.own)
            two = _fitting(form, other.items(), self._arriving.other, gradient.other)
            if len(one) == len(two) == 1 and one.keys() != two.keys():
                return next(iter(one)), next(iter(two))
        return None

    def _near(self, read: Array) -> Iterator[tuple[Recovered, KernelForm]]:
        """Yields the forms of kernels whose taps lie no farther from an element of the output than the kernel is wide.

        Args:
            read: A value of the shape of what is read.
        """
        for gradient in self._gradients:
            shape = gradient.own.shape
            few = len(shape) > 1 and read.size <= _MOST_ELEMENTS and read.size * max(shape) <= _MOST_PRODUCTS
            for form in forms(shape, read.shape, self.shape) if few else ():
                reach = min(form.reach, max(shape[2:], default=1))
                yield gradient, form if form.matrix is not None else replace(form, reach=reach)


def _turned(value: Array) -> Iterator[tuple[str, Array]]:
    """Yields a value, and what it is in reverse along an axis or with two axes of one size exchanged, by the words."""
    yield "", value
    axes = [axis for axis, size in enumerate(value.shape) if axis and size > 1]
    yield from ((f"in reverse along the axis {axis}", np.flip(value, axis)) for axis in axes)
    for one, other in itertools.combinations(axes, 2):
        if value.shape[one] == value.shape[other]:
            yield f"with its axes [{one}, {other}] exchanged", value.swapaxes(one, other)


def _fitting(
    form: KernelForm, functions: Iterable[tuple[str, Array]], arriving: Array, gradient: Array
) -> dict[str, float]:
    """Returns the errors of the functions of a value, by their words, that make the gradient of a kernel."""
    errors = ((words, _error(form, read, arriving, gradient)) for words, read in functions)
    return {words: error for words, error in errors if error <= _FITS}


def _error(form: KernelForm, read: Array, arriving: Array, gradient: Array) -> float:
    """Returns the error of the gradient of a kernel that reads a value, a dense layer in any order of its features."""
    error = gradient_error(form, read, arriving, gradient, most=_FITS)
    turned = orders(read) if form.matrix is not None and error > _FITS else ()
    return min((error, *(gradient_error(form, each, arriving, gradient) for each in turned)))
