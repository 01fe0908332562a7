"""`SampledProducts` has some elements of the products that a kernel makes of what a layer reads.

Of a convolution, an element of the product is the sum over the taps of the kernel, each with the values that lie a
distance away: where they lie depends on strides, dilations and the beginning of the padding (`Places`), and what lies
behind the edges on how that goes on. A dense layer has one tap, and a transposed convolution reads its values with
zeros between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.apart.correlations import Padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Places stores where the taps of a kernel lie, along each axis of space.

    Attributes:
        strides: How far the windows of neighbouring elements of the product are apart.
        spreads: How far the values that are read are apart, with zeros between them: above 1 where a convolution is
            transposed.
        dilations: How far neighbouring taps are apart.
        begins: How far before the edge the first window begins.
    """

    strides: tuple[int, ...] = ()
    spreads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()


#: Where a place behind the edges lies on an axis of a size, by how it goes on; zeros lie nowhere.
_INSIDE: Final[Mapping[Padding, Callable[[Array, int], Array]]] = MappingProxyType({
    "wrap": lambda at, size: at % size,
    "edge": lambda at, size: np.clip(at, 0, size - 1),
    "symmetric": lambda at, size: size - 1 - np.abs(at % (2 * size) - size + 0.5).astype(np.int64),
    "reflect": lambda at, size: size - 1 - np.abs(at % max(1, 2 * (size - 1)) - (size - 1)),
})  # fmt: skip

#: The most values that are taken of what is read at once.
_MOST_READ: Final = 1 << 18


class SampledProducts:
    """SampledProducts computes elements of the products that kernels make of one value.

    Args:
        read: What the layer reads, as `[examples, ..., channels]`.
        elements: The elements of the product: indices along each of its axes, which are those of what is read.
        outputs: The number of the outputs.
    """

    def __init__(self, read: Array, elements: Sequence[Array], outputs: int) -> None:
        self._read, self._outputs = read, outputs
        self._examples, self._at, self._channels = elements[0], elements[1:-1], elements[-1]

    def products(self, kernels: Array, sizes: Sequence[int], places: Sequence[Places], padding: Padding) -> Array:
        """Returns the elements, as `[places, kernels, elements]`.

        Args:
            kernels: Kernels of the elements' outputs, as `[kernels, taps, inputs, elements]`.
            sizes: The number of their taps along each axis of space.
            places: Where the taps lie, in each of several ways.
            padding: How what is read goes on behind its edges.
        """
        each = math.prod(kernels.shape[1:])
        count = max(1, _MOST_READ // each)
        some = (places[start : start + count] for start in range(0, len(places), count))
        made = [self._products(kernels, sizes, among, padding) for among in some]
        return np.concatenate(made) if made else np.empty((0, len(kernels), len(self._channels)))

    def _products(self, kernels: Array, sizes: Sequence[int], places: Sequence[Places], padding: Padding) -> Array:
        inputs = kernels.shape[2]
        # The groups of the channels follow each other.
        first = self._channels // (self._outputs // (self._read.shape[-1] // inputs)) * inputs
        columns = first[:, None, None] + np.arange(inputs)
        taps = np.array([*itertools.product(*map(range, sizes))]).reshape(math.prod(sizes), len(sizes)).T
        known, at = np.ones((len(places), len(first), taps.shape[1]), bool), list[Array]()
        for axis, (tap, own) in enumerate(zip(taps, self._at, strict=True)):
            size, facts = self._read.shape[axis + 1], [_along(each, axis) for each in places]
            strides, spreads, dilations, begins = np.array(facts).T[:, :, None, None]
            place = own[:, None] * strides - begins + tap * dilations
            whole, between = np.divmod(place, spreads)
            known &= between == 0
            if padding == "constant":
                known &= (whole >= 0) & (whole < size)
                whole = np.clip(whole, 0, size - 1)
            else:
                whole = _INSIDE[padding](whole, size)
            at.append(whole[..., None])
        values = self._read[self._examples[:, None, None], *at, columns] * known[..., None]
        values = np.broadcast_to(values, (*known.shape, inputs))  # a dense layer has no axis of space
        return np.einsum("psti,ktis->pks", values, kernels)


def _along(places: Places, axis: int) -> tuple[int, int, int, int]:
    return places.strides[axis], places.spreads[axis], places.dilations[axis], places.begins[axis]
