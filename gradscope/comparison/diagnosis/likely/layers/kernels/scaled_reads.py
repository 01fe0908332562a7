"""`scaled_values` returns what layers with a kernel read that scale and shift a value first, as images often are.

The product of the kernel and `factor * value + offset` is the factor times that of the value, plus the offset times
that of ones: both numbers, or those of each channel, follow from some elements of the product by least squares.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.kernels.kernel_uses import KernelSearch, LayerForm, Work, layer_forms
from gradscope.comparison.diagnosis.likely.layers.kernels.sampled_products import SampledProducts
from gradscope.comparison.diagnosis.likely.layers.read_values import ReadValue
from gradscope.naming.wording import brief

#: The number of elements of a product by which the numbers are found, and the most places of the taps and products.
_SAMPLE: Final = 48
_MOST_PLACES: Final = 1 << 8
_MOST_PRODUCTS: Final = 1 << 22

#: The most channels that may have numbers of their own.
_MOST_CHANNELS: Final = 4

#: The relative errors up to which elements are those of a product, and up to which two numbers are the same.
_ROUNDING: Final = 1e-5
_AGREE: Final = 1e-3

#: The fewest elements that show the numbers of a channel.
_FEWEST: Final = 8

#: How many times the rounding of a product a term of it is at least that is there.
_NOTHING: Final = 10

#: The least ratio of the singular values of products that are not multiples of each other.
_APART: Final = 1e-3

#: Both tensors of a pair, in the layout of the reference.
_Both = tuple[Array, Array]


class _Scaling(NamedTuple):
    """_Scaling has by what a value is multiplied and what is added then, for all of it or for each channel.

    Attributes:
        factors: By what it is multiplied.
        offsets: What is added.
        channel: The axis of the channels; None for all of it.
    """

    factors: Array
    offsets: Array
    channel: int | None

    def of(self, value: Array) -> Array:
        """Returns what is made of a value."""
        along = [-1 if axis == self.channel else 1 for axis in range(value.ndim)]
        return self.factors.reshape(along) * value + self.offsets.reshape(along)

    def agrees(self, other: _Scaling) -> bool:
        """Returns whether another one has the same numbers."""
        pairs = ((self.factors, other.factors), (self.offsets, other.offsets))
        return self.factors.size == other.factors.size and all(np.allclose(*each, rtol=_AGREE) for each in pairs)

    def words(self, name: str) -> str:
        """Returns what is made of a value, in words.

        Args:
            name: The name of the value.
        """
        factor, offset = _common(self.factors), _common(self.offsets)
        scaled = name if factor == "1" else f"{factor} times {name}"
        added = f"less {offset[1:]}" if offset.startswith("-") else f"plus {offset}"
        return scaled if offset == "0" else f"{scaled} {added}"


def scaled_values(
    read: tuple[str, _Both], kernels: _Both, values: _Both, biases: Sequence[_Both], work: Work
) -> list[ReadValue]:
    """Returns what the layers read of a value that they scale first; nothing where the reference's layer does not.

    Args:
        read: The name of the value, and the value of both programs.
        kernels: Their kernels.
        values: What they compute.
        biases: What they may add.
        work: What this and other searches may take together.
    """
    name, arguments = read
    sides = zip(arguments, kernels, values, strict=True)
    one, other = (next(_scalings(*each, [bias[at] for bias in biases], work), None) for at, each in enumerate(sides))
    if one is None:
        return []
    found = [one] if other is None or other.agrees(one) else [one, other]
    return [ReadValue(f"reads {each.words(f'`{name}`')}", *map(each.of, arguments)) for each in found]


def scaled_read(
    read: tuple[str, Array], kernel: Array, value: Array, biases: Sequence[Array], work: Work
) -> str | None:
    """Returns what a layer makes of a value before it multiplies that by its kernel, in words; None where it does not.

    Args:
        read: The name of the value, and the value.
        kernel: The kernel.
        value: What the layer computes.
        biases: What it may add.
        work: What this and other searches may take together.
    """
    found = next(_scalings(read[1], kernel, value, biases, work), None)
    return None if found is None else found.words(read[0])


def _scalings(read: Array, kernel: Array, value: Array, biases: Sequence[Array], work: Work) -> Iterator[_Scaling]:
    """Yields the scalings of a value of which a kernel makes another one."""
    for form in layer_forms(read, kernel, value):
        search, inputs = KernelSearch(form, biases), form.kernel.shape[-2]
        own = inputs <= _MOST_CHANNELS and bool(form.space) and form.read.shape[-1] == inputs
        channel = next(axis for axis in range(1, read.ndim) if axis not in form.space) if own else None
        masks = np.eye(inputs) if own else np.ones((1, inputs))
        found = _numbers(form, search, masks, work)
        yield from (_Scaling(numbers[: len(masks)], numbers[len(masks) :], channel) for numbers in found)


def _numbers(form: LayerForm, search: KernelSearch, masks: Array, work: Work) -> Iterator[Array]:
    """Yields by what channels are multiplied, and then what is added to them, as far as a kernel makes a value so."""
    elements = search.elements(_SAMPLE, inside=False)
    each = 2 * len(masks) * search.products(_SAMPLE)
    expected = form.value[elements]
    limit = _ROUNDING * np.linalg.norm(expected)
    if form.value.size < _FEWEST * len(masks) or not expected.any() or each > _MOST_PRODUCTS:
        return
    kernels, places = search.kernels(elements), search.places()[:_MOST_PLACES]
    if not work.take(each * len(places)):
        return
    flips, taps, *rest = kernels.shape
    masked = (kernels[:, None] * masks[None, :, None, :, None]).reshape(-1, taps, *rest)
    products = [SampledProducts(each, elements, form.kernel.shape[-1]) for each in (form.read, np.ones_like(form.read))]
    sizes_of_kernel, shape = form.kernel.shape[:-2], (len(places), flips, len(masks), len(expected))
    made = [each.products(masked, sizes_of_kernel, places, "constant").reshape(shape) for each in products]
    for columns in np.concatenate(made, axis=2):
        for flipped, bias in itertools.product(columns, (None, *search.biases.values())):
            sums, sizes = expected if bias is None else expected - bias[elements[-1]], np.linalg.norm(flipped, axis=1)
            if not sizes.all() or not (np.isfinite(sizes).all() and np.isfinite(sums).all()):  # the largest overflow
                continue
            terms = (flipped / sizes[:, None]).T
            found, _, rank, singular = np.linalg.lstsq(terms, sums, rcond=None)
            apart = rank == len(found) and singular[-1] > _APART * singular[0]
            if apart and np.linalg.norm(terms @ found - sums) <= limit:
                yield np.where(np.abs(found) <= _NOTHING * limit, 0, found) / sizes


def _rounded(number: np.float64) -> float:
    """Returns the whole number that another one is but for rounding, or that number itself."""
    return float(round(number)) if abs(number - round(number)) <= _AGREE * abs(number) else float(number)


def _common(numbers: Array) -> str:
    """Returns numbers in words: one where they are the same for all channels."""
    words = [
        f"{each:.0f}" if each.is_integer() else "-" * (each < 0) + brief(abs(each)) for each in map(_rounded, numbers)
    ]
    return words[0] if len({*words}) == 1 else f"[{', '.join(words)}] by channel"
