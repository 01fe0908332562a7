"""`resized_values` yields the images that interpolations make of one, as an upsampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.functions.possible_functions import Both, PossibleFunctions
from gradscope.protocols import implements

#: The most elements of an enlarged image.
_MOST_ELEMENTS: Final = 1 << 18


def _of_centres(large: int, small: int) -> Array:
    return (np.arange(large) + 0.5) * (small / large) - 0.5


def _of_corners(large: int, small: int) -> Array:
    return np.arange(large) * ((small - 1) / max(large - 1, 1))


def _of_beginnings(large: int, small: int) -> Array:
    return np.arange(large) * (small / large)


def _nearest(places: Array, small: int) -> Array:
    """Returns the matrix that takes the neighbour at or before each place."""
    return np.eye(small)[np.clip(np.floor(places), 0, small - 1).astype(np.intp)]


def _linear(places: Array, small: int) -> Array:
    """Returns the matrix that interpolates linearly at places, and continues the ends."""
    before = np.clip(np.floor(places), 0, max(small - 2, 0)).astype(np.intp)
    share = np.clip(places - before, 0, 1)[:, None]
    every = np.eye(small)
    return (1 - share) * every[before] + share * every[np.minimum(before + 1, small - 1)]


def _cubic(places: Array, small: int, slope: float, *, repeats: bool) -> Array:
    """Returns the matrix of the cubic convolution of Keys (1981), which repeats the ends or leaves them out."""
    every = np.arange(-2, small + 2)
    x = np.abs(places[:, None] - every)
    near = ((slope + 2) * x - (slope + 3)) * x * x + 1
    far = ((slope * x - 5 * slope) * x + 8 * slope) * x - 4 * slope
    weights = np.where(x <= 1, near, np.where(x < 2, far, 0))
    if repeats:
        return weights @ np.eye(small)[np.clip(every, 0, small - 1)]
    inside = weights[:, 2:-2]
    return inside / inside.sum(1, keepdims=True)


#: The matrices of interpolations, given the sizes of the larger and of the smaller axis, by their words.
_MATRICES: Final[Mapping[str, Callable[[int, int], Array]]] = MappingProxyType({
    "nearest neighbours": lambda large, small: _nearest(_of_beginnings(large, small), small),
    "nearest neighbours of aligned corners": lambda large, small: _nearest(_of_corners(large, small) + 0.5, small),
    "bilinear interpolation of pixel centres": lambda large, small: _linear(_of_centres(large, small), small),
    "bilinear interpolation of aligned corners": lambda large, small: _linear(_of_corners(large, small), small),
    "bilinear interpolation of beginnings": lambda large, small: _linear(_of_beginnings(large, small), small),
    "bicubic interpolation of slope -0.5": lambda large, small: _cubic(
        _of_centres(large, small), small, -0.5, repeats=False  # as JAX does
    ),
    "bicubic interpolation of slope -0.75": lambda large, small: _cubic(
        _of_centres(large, small), small, -0.75, repeats=True  # as PyTorch does
    ),
    "bicubic interpolation of aligned corners": lambda large, small: _cubic(
        _of_corners(large, small), small, -0.75, repeats=True
    ),
})  # fmt: skip


def resized_values(values: Sequence[Both], names: Sequence[str], shape: Sequence[int]) -> Iterator[PossibleFunctions]:
    """Yields what an image may be enlarged to.

    Args:
        values: The values of both programs, of which one is an image.
        names: Their names, as they are printed.
        shape: The shape of an output that has the enlarged axes, or of what is computed of it.
    """
    if len(values) != 1 or values[0].own.ndim != len(shape) or len(shape) not in (3, 4):
        return
    (image,), (name,) = values, names
    for channel in (1, len(shape) - 1):
        axes = [axis for axis in range(1, len(shape)) if axis != channel]
        larger = all(shape[axis] > image.own.shape[axis] > 1 for axis in axes)
        sizes = tuple(shape[axis] if axis in axes else size for axis, size in enumerate(image.own.shape))
        if larger and np.prod(sizes) <= _MOST_ELEMENTS:
            empty = np.broadcast_to(np.zeros(()), sizes)
            yield _Resized(Both(empty, empty), image, name, axes)


class _Resized(NamedTuple):
    """_Resized is an image, enlarged along some axes.

    Attributes:
        argument: A value of the shape of the enlarged image.
        image: The image.
        name: Its name.
        axes: The axes.
    """

    argument: Both
    image: Both
    name: str
    axes: Sequence[int]

    @implements(PossibleFunctions)
    def functions(self, *, of_own: bool) -> Iterator[tuple[str, Array]]:
        image = self.image.own if of_own else self.image.other
        for words, matrix in _MATRICES.items():
            made = image
            for axis in self.axes:
                turns = matrix(self.argument.own.shape[axis], image.shape[axis])
                made = np.moveaxis(np.tensordot(turns, made, (1, axis)), 0, axis)
            yield f"the {words}", made

    @implements(PossibleFunctions)
    def phrase(self, words: str) -> str:
        return f"{words} of {self.name}"
