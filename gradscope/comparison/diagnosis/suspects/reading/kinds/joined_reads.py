"""`joined_read` tells as which of its channels a layer reads a value that is joined with others before it.

An image may be joined with one of an earlier layer, or with itself from another place on, as where patches are merged.
The gradient of a kernel has a part for the channels of each value, made of that value alone: so the part of one value
shows where it is among the others in each program, whatever the others are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import DERIVATIVES, ELEMENTWISE
from gradscope.comparison.diagnosis.refuting.apart.correlations import forms, gradient_errors
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered

#: The relative error up to which a gradient is made of what is read.
_FITS: Final = 1e-4

#: The most elements of a value whose places are looked for, and of one of which functions are tried.
_MOST_ELEMENTS: Final = 1 << 20
_MOST_OF_FUNCTIONS: Final = 1 << 14

#: The most places that a value may have among others.
_MOST_PLACES: Final = 64

#: The largest distance of the places from which on an image may be joined with itself.
_MOST_STRIDE: Final = 4


class _Part(NamedTuple):
    """A `_Part` is what a layer may read as some of its channels: a value, or every so many places of it.

    Attributes:
        words: What it is.
        value: Its elements.
        channels: The axis of its channels.
    """

    words: str
    value: Array
    channels: int


def joined_read(
    named: Sequence[tuple[str, Array]], value: Recovered, arriving: Recovered, gradients: Sequence[Recovered]
) -> tuple[str, str, str] | None:
    """Returns which value is read, and as which channels in the own program and in the other, in words; else None.

    Args:
        named: The values that the layer reads, on which the programs agree, and their names.
        value: Its output.
        arriving: The gradient of that.
        gradients: The gradients of its parameters.
    """
    kernels = [each for each in gradients if each.own.ndim > 1]
    if len(kernels) != 1 or any(each.size > _MOST_ELEMENTS for _, each in named):
        return None
    for function, derivative in itertools.product(("", *ELEMENTWISE), DERIVATIVES.values()):
        sent = Recovered(*(each * derivative(made) for each, made in zip(arriving, value, strict=True)))
        for name, read in named:
            if function and read.size > _MOST_OF_FUNCTIONS:
                continue
            words, made = (f"the {function} of {name}", ELEMENTWISE[function](read)) if function else (name, read)
            for part in _parts(words, made, value.own):
                beside = (each for other, each in named if other != name and each.ndim == part.value.ndim)
                others = [each.shape[part.channels] for each in beside]
                if (places := _places(part, others, sent, kernels[0])) is not None:
                    width = part.value.shape[part.channels]
                    own, other = (f"the channels {at} to {at + width - 1}" for at in places)
                    return part.words, own, other
    return None


def _parts(words: str, read: Array, made: Array) -> Iterator[_Part]:
    """Yields what of a value may be some channels, given what the layer makes: that has fewer positions, maybe."""
    for channels in dict.fromkeys((read.ndim - 1, 1)):
        if read.ndim < 2 or not channels:
            continue
        yield _Part(words, read, channels)
        last = np.moveaxis(read, channels, -1)
        if read.ndim != 4 or made.ndim < 3:
            continue
        for stride in range(2, _MOST_STRIDE + 1):
            if read.size // read.shape[channels] != made.size // made.shape[-1] * stride**2:
                continue
            for one, other in itertools.product(range(stride), repeat=2):
                where = f"{words} at every {stride} places from [{one}, {other}]"
                yield _Part(where, np.ascontiguousarray(last[:, one::stride, other::stride]), read.ndim - 1)


def _places(part: _Part, others: Sequence[int], sent: Recovered, kernel: Recovered) -> tuple[int, int] | None:
    """Returns at which of its inputs a kernel multiplies a part in both programs; None where not at others."""
    width = part.value.shape[part.channels]
    for axis, size in enumerate(kernel.own.shape):
        if not width < size:
            continue
        before = {sum(some) for count in range(len(others) + 1) for some in itertools.combinations(others, count)}
        steps = range(0, size, width) if size % width == 0 else ()
        places = sorted({0, size - width, *steps, *before})[:_MOST_PLACES]
        places = [at for at in places if at + width <= size]
        own = _where_made(part, sent.own, kernel.own, axis, places)
        other = _where_made(part, sent.other, kernel.other, axis, places) if len(own) == 1 else []
        if len(other) == 1 and own != other:
            return own[0], other[0]
    return None


def _where_made(part: _Part, sent: Array, kernel: Array, axis: int, places: Sequence[int]) -> list[int]:
    """Returns the places of the inputs where the gradient of a kernel is made of what its layer may read.

    Args:
        part: What it may read.
        sent: The gradient that arrives.
        kernel: The gradient of the kernel.
        axis: The axis of its inputs.
        places: The places, one of which may be the first input of the part.
    """
    width = part.value.shape[part.channels]
    gradients = {at: kernel.take(range(at, at + width), axis) for at in places}
    gradients = {at: each for at, each in gradients.items() if each.any()}
    found: set[int] = set()
    for form in forms((*kernel.shape[:axis], width, *kernel.shape[axis + 1 :]), part.value.shape, sent.shape):
        if form.inputs == axis and (form.matrix is not None or form.channels == part.channels):
            errors = gradient_errors(form, part.value, sent, [*gradients.values()], most=_FITS)
            found |= {at for at, error in zip(gradients, errors, strict=True) if error <= _FITS}
    return sorted(found)
