"""`KernelUse` states how a layer uses its kernel, and `kernel_uses` finds by some elements how it does.

A use is tried on a few elements from the middle of the product first, where what lies behind the edges does not matter,
and those that fit are tried on more, the corners among them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final, NamedTuple, get_args

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.kernels.sampled_products import Places, SampledProducts
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.apart.correlations import Padding, convolutions, matrices

#: The numbers of elements that are computed first, and for the uses that fit these.
_FIRST: Final = 8
_SAMPLE: Final = 64

#: The number of elements that show which functions may have been applied: the others are computed of those alone.
_FEW: Final = 2

#: The largest number of products for one place of the taps, and of the places that are tried.
_MOST_PRODUCTS: Final = 1 << 22
_MOST_PLACES: Final = 1 << 10

#: The largest number of products of several searches: they take a few seconds.
_MOST_WORK: Final = 1 << 29

#: The relative error up to which elements of float32 are those of a use: two forms of a GELU are no farther apart than
#: 1e-4.
ROUNDING: Final = 1e-5

#: The dilations that are tried, and the widest window before whose edge it may begin anywhere.
_DILATIONS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_NARROW: Final = 6

#: The functions that a layer may apply to its product, by their words.
_FUNCTIONS: Final[Mapping[str, Elementwise]] = MappingProxyType({"no function": np.copy, **ELEMENTWISE})


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """KernelUse stores how a layer makes a value of what it reads and a kernel.

    Attributes:
        axes: The axes of the kernel: those of space in the order of those of what is read, the inputs, the outputs.
        flipped: Those that are flipped.
        space: The axes of space of what is read; none of a dense layer.
        places: Where the taps lie.
        padding: How what is read goes on behind its edges.
        bias: The position of the bias; None without one.
        function: The function that is applied to the sum, in words.
    """

    axes: tuple[int, ...]
    flipped: tuple[int, ...]
    space: tuple[int, ...]
    places: Places
    padding: Padding
    bias: int | None
    function: str

    def distance(self, other: KernelUse) -> int:
        """Returns in how many facts it is another use."""
        own = [getattr(self, each.name) != getattr(other, each.name) for each in fields(self)]
        return sum(own) + sum(getattr(self.places, each.name) != getattr(other.places, each.name)
                              for each in fields(self.places))  # fmt: skip


class Work:
    """Work counts the products of several searches, which find nothing once there were too many.

    Attributes:
        left: How many products are left.
    """

    def __init__(self) -> None:
        self.left = _MOST_WORK

    def take(self, products: int) -> bool:
        """Returns whether so many products are left, and takes them."""
        self.left -= products
        return self.left >= 0


def kernel_uses(
    read: Array,
    kernel: Array,
    value: Array,
    biases: Sequence[Array],
    *,
    places: Sequence[Places] | None = None,
    work: Work | None = None,
    rounding: float = ROUNDING,
) -> Iterator[KernelUse]:
    """Yields the uses of a kernel that make a value.

    Args:
        read: What the layer reads.
        kernel: The kernel.
        value: What it computes.
        biases: What it may add, each with an element for each output.
        places: Where the taps may lie; None for anywhere.
        work: What this and other searches may take together; None for a search alone.
        rounding: The relative error up to which elements are those of a use.
    """
    work = work or Work()
    for form in layer_forms(read, kernel, value):
        yield from KernelSearch(form, biases, rounding).uses(places, work)


class LayerForm(NamedTuple):
    """LayerForm has the tensors of a layer by the meaning of their axes.

    Attributes:
        read: What it reads, as `[examples, ..., inputs]`.
        value: What it computes, as `[examples, ..., outputs]`.
        kernel: The kernel, as `[..., inputs, outputs]`.
        axes: The axes of the kernel in this order.
        space: The axes of space of what is read.
    """

    read: Array
    value: Array
    kernel: Array
    axes: tuple[int, ...]
    space: tuple[int, ...]


def layer_forms(read: Array, kernel: Array, value: Array) -> Iterator[LayerForm]:
    """Yields the meanings that the axes of a layer's tensors may have.

    Args:
        read: What the layer reads.
        kernel: Its kernel.
        value: What it computes.
    """
    if kernel.ndim > 2 and kernel.ndim == read.ndim == value.ndim:
        for channels, inputs, outputs in convolutions(kernel.shape, read.shape, value.shape):
            space = tuple(axis for axis in range(1, read.ndim) if axis != channels)
            taps = (axis for axis in range(kernel.ndim) if axis not in (inputs, outputs))
            for order in itertools.permutations(taps):
                axes = (*order, inputs, outputs)
                yield LayerForm(
                    np.moveaxis(read, channels, -1),
                    np.moveaxis(value, channels, -1),
                    kernel.transpose(axes),
                    axes,
                    space,
                )
        return
    for matrix, axes in itertools.product(matrices(kernel.shape), ((0, 1), (1, 0))):
        turned = kernel.reshape(matrix).transpose(axes)
        if value.size % turned.shape[1] == 0 and read.size * turned.shape[1] == value.size * len(turned):
            yield LayerForm(read.reshape(-1, len(turned)), value.reshape(-1, turned.shape[1]), turned, axes, ())


class KernelSearch:
    """KernelSearch finds the uses of one form.

    Args:
        form: The form.
        biases: What the layer may add.
        rounding: The relative error up to which elements are those of a use.

    Attributes:
        biases: What of that has an element for each output, by its position.
    """

    def __init__(self, form: LayerForm, biases: Sequence[Array], rounding: float = ROUNDING) -> None:
        self._form, self._rounding, outputs = form, rounding, form.kernel.shape[-1]
        flips = range(form.kernel.ndim - 1)
        self._flips = [each for count in flips for each in itertools.combinations(range(form.kernel.ndim - 2), count)]
        self.biases = {at: each.reshape(-1) for at, each in enumerate(biases) if each.size == outputs}

    def uses(self, among: Sequence[Places] | None, work: Work) -> Iterator[KernelUse]:
        """Yields the uses with taps at any or some places, as long as work is left."""
        each = self.products(1)
        if not 0 < each * _FIRST <= _MOST_PRODUCTS or not self._form.value.size:
            return
        first = self.elements(_FIRST, inside=True)
        every = self.elements(min(_SAMPLE, _MOST_PRODUCTS // each), inside=False)
        places = self.places() if among is None else among
        if not work.take(len(places) * each * _FIRST):
            return
        fits = {use.places: None for use in self._fitting(first, places, "constant")}
        for padding in get_args(Padding) if self._form.space else ("constant",):
            yield from self._fitting(every, list(fits), padding)

    def products(self, count: int) -> int:
        """Returns how many products a number of elements of the value take, for all ways to flip the kernel."""
        return count * len(self._flips) * math.prod(self._form.kernel.shape[:-1])

    def places(self) -> list[Places]:
        """Returns where the taps may lie."""
        return list(itertools.islice(_places(self._form), _MOST_PLACES))

    def kernels(self, elements: tuple[Array, ...]) -> Array:
        """Returns the kernels of some elements of the value, for each way to flip them.

        Args:
            elements: The indices of the elements.
        """
        own = self._form.kernel[..., elements[-1]]
        return np.stack([np.flip(own, axes).reshape(-1, *own.shape[-2:]) for axes in self._flips])

    def elements(self, count: int, *, inside: bool) -> tuple[Array, ...]:
        """Returns the indices of some elements of the value.

        Args:
            count: Their number.
            inside: Whether they are those in its middle, or its corners and others.
        """
        draw, shape = np.random.default_rng(0).integers, self._form.value.shape
        lows = [(size - 1) // 2 if inside and 0 < axis < len(shape) - 1 else 0 for axis, size in enumerate(shape)]
        found = [draw(low, size - low, count) for low, size in zip(lows, shape, strict=True)]
        if not inside:
            corners = np.array([*itertools.product((0, -1), repeat=len(shape) - 2)])[: count // 2]
            for axis in range(len(shape) - 2):
                found[axis + 1][: len(corners)] = corners[:, axis] % shape[axis + 1]
        return tuple(found)

    def _fitting(self, elements: tuple[Array, ...], places: Sequence[Places], padding: Padding) -> Iterator[KernelUse]:
        """Yields the uses with taps at some places that make some elements of the value."""
        form, expected = self._form, self._form.value[elements]
        limit = self._rounding * float(np.linalg.norm(expected))
        if not places or not limit > 0:
            return
        sampled = SampledProducts(form.read, elements, form.kernel.shape[-1])
        kernels = self.kernels(elements)
        products, count = sampled.products(kernels, form.kernel.shape[:-2], places, padding), len(self._flips)
        products = products.reshape(-1, products.shape[-1])
        added = dict[int | None, Array]({None: np.zeros(len(expected))})
        added |= {at: bias[elements[-1]] for at, bias in self.biases.items()}
        sums, biases = products + np.stack([*added.values()])[:, None], [*added]
        made = np.stack([function(sums[..., :_FEW]) for function in _FUNCTIONS.values()])
        near = np.square(made - expected[:_FEW]).sum(-1) <= limit**2
        for (words, function), possible in zip(_FUNCTIONS.items(), near, strict=True):
            if not possible.any():
                continue
            errors = np.square(function(sums[possible]) - expected).sum(-1)
            for at, found in np.argwhere(possible)[errors <= limit**2].tolist():
                flipped = tuple(sorted(form.axes[axis] for axis in self._flips[found % count]))
                yield KernelUse(
                    axes=form.axes,
                    flipped=flipped,
                    space=form.space,
                    places=places[found // count],
                    padding=padding,
                    bias=biases[at],
                    function=words,
                )


def _places(form: LayerForm) -> Iterator[Places]:
    """Yields where the taps of a kernel may lie, as the sizes allow."""
    axes = [
        [*dict.fromkeys(_steps(own, out, taps))]
        for own, out, taps in zip(form.read.shape[1:-1], form.value.shape[1:-1], form.kernel.shape[:-2], strict=True)
    ]
    for dilation in _DILATIONS if axes else (1,):
        widths = [dilation * (taps - 1) for taps in form.kernel.shape[:-2]]
        if dilation > 1 and not any(
            0 < width < 2 * own for width, own in zip(widths, form.read.shape[1:-1], strict=True)
        ):
            continue
        begins = [
            range(width + 1) if width <= _NARROW else dict.fromkeys((0, width // 2, -(-width // 2), width))
            for width in widths
        ]
        for steps, begin in itertools.product(itertools.product(*axes), itertools.product(*begins)):
            yield Places(
                strides=tuple(stride for stride, _ in steps),
                spreads=tuple(spread for _, spread in steps),
                dilations=(dilation,) * len(axes),
                begins=begin,
            )


def _steps(own: int, out: int, taps: int) -> Iterator[tuple[int, int]]:
    """Yields the strides, and how far values are spread, that make one size of another: padded, or not at all."""
    small, large = sorted((own, out))
    without = (large - taps) // (small - 1) if small > 1 else 1
    for step in (large // small, -(-large // small), without):
        yield (max(1, step), 1) if out <= own else (1, max(1, step))
