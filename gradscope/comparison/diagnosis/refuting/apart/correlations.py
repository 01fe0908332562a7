"""`KernelForm` makes the gradients that a kernel can have, for what its layer reads and the gradient at its output.

A dense layer has the gradient `u^T g`; its kernel may have an axis for each of several features, as `[heads, width,
out]`, and is one matrix all the same. A convolution multiplies each tap of its kernel with values that lie a fixed
distance from those of its output, so that the gradient of a tap is a correlation of `u` and `g` at that distance. Which
distance belongs to which tap depends on padding, dilation, and whether the kernel is flipped; a wrong one of these
leaves each tap one of the correlations. What lies behind the edges is zero, or what the padding makes of the values
before them. A transposed convolution has `u` and `g` in each other's place.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from gradscope.arrays.blocks import Array

#: The largest number of products that are computed for one form, and of elements of the gradients that they make.
_MOST_PRODUCTS: Final = 1 << 29
_MOST_ELEMENTS: Final = 1 << 24

#: The most elements at any distance that are copied at once.
_MOST_AT_ONCE: Final = 1 << 22

#: The largest number of features whose order is found.
_MOST_FEATURES: Final = 4096

#: The number of features that show first whether a gradient is made of a value.
_FEW_FEATURES: Final = 4

#: How far a tap may lie from an element of the output along each axis, where that takes few products.
_REACH: Final = 8


#: How a convolution may go on behind the edge of what it reads. One element behind it is the same at the edge and by
#: symmetry: what comes first is said.
Padding: TypeAlias = Literal["constant", "wrap", "reflect", "edge", "symmetric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForm:
    """KernelForm stores how a kernel, what its layer reads and the output of its layer belong together.

    Attributes:
        channels: The axis of the channels of what is read and of the output.
        inputs: The axis of the kernel that the inputs of a group of channels have.
        outputs: The axis of the kernel that the outputs have.
        matrix: The shape of the kernel of a dense layer as a matrix, which these axes are about; None for a
            convolution.
        strides: The stride along each axis of space; none for a dense layer.
        padding: What lies outside of what is read: zeros, or as `numpy.pad` makes it in this mode.
        reach: How far a tap may lie from an element of the output along each axis.
    """

    channels: int
    inputs: int
    outputs: int
    matrix: tuple[int, int] | None = None
    strides: tuple[int, ...] = ()
    reach: int = 0
    padding: Padding = "constant"

    def taps(self, gradient: Array) -> Array:
        """Returns the gradient of a kernel as `[taps, inputs, outputs]`.

        Args:
            gradient: The gradient.
        """
        kernel = gradient if self.matrix is None else gradient.reshape(self.matrix)
        moved = np.moveaxis(kernel, (self.inputs, self.outputs), (-2, -1))
        return moved.reshape(-1, *moved.shape[-2:])

    def possible(self, read: Array, arriving: Array, inputs: int) -> Array:
        """Returns the gradients that a tap can have, as `[distances, inputs, outputs]`.

        Args:
            read: What the layer reads.
            arriving: The gradient at its output.
            inputs: The number of inputs of each group of channels.
        """
        if self.matrix is not None:  # a dense layer may read a flattened image
            arriving = arriving.reshape(-1, self.matrix[self.outputs])
            return (read.reshape(len(arriving), -1).T @ arriving)[None]
        read, arriving = (np.moveaxis(each, self.channels, -1) for each in (read, arriving))
        swapped = math.prod(read.shape[1:-1]) < math.prod(arriving.shape[1:-1])
        large, small = (arriving, read) if swapped else (read, arriving)
        windows, axes = self._windows(large, small), range(small.ndim - 1)
        count, elements = max(1, _MOST_AT_ONCE // windows[0].size), range(windows.ndim - small.ndim, windows.ndim - 1)
        some = (windows[start : start + count] for start in range(0, len(windows), count))
        made = np.concatenate([np.tensordot(each, small, (elements, axes)) for each in some])
        found = made.reshape(-1, *made.shape[-2:])
        found = found.swapaxes(1, 2) if swapped else found
        groups = found.shape[1] // inputs
        outputs = np.arange(found.shape[2])
        first = outputs // (found.shape[2] // groups) * inputs  # the first input of the group that an output is in
        return found[:, first[None, :] + np.arange(inputs)[:, None], outputs[None, :]]

    def _windows(self, large: Array, small: Array) -> Array:
        """Returns what lies at each distance from the elements of the smaller array.

        Returns:
            A view of the shape `[distances, ..., elements, ..., channels]`.
        """
        sizes, reaches = small.shape[1:-1], _reaches(large.shape[1:-1], self.reach)
        ends = [
            max(0, stride * (size - 1) + 1 + reach - own)
            for stride, size, reach, own in zip(self.strides, sizes, reaches, large.shape[1:-1], strict=True)
        ]
        padded = np.pad(large, [(0, 0), *zip(reaches, ends, strict=True), (0, 0)], mode=self.padding)
        spans = tuple(stride * (size - 1) + 1 for stride, size in zip(self.strides, sizes, strict=True))
        space = tuple(range(1, padded.ndim - 1))
        windows = np.lib.stride_tricks.sliding_window_view(padded, spans, space)
        within = (slice(2 * reach + 1) for reach in reaches)
        elements = (slice(None, None, stride) for stride in self.strides)
        # As `[examples, distances, ..., channels, elements, ...]` so far.
        found = windows[:, *within, :, *elements]
        count = len(space)
        order = (*range(1, 1 + count), 0, *range(2 + count, 2 + 2 * count), 1 + count)
        return found.transpose(order)


def matrices(kernel: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yields the shapes of matrices that a kernel of at least two axes may be: the first axes by the last ones.

    Args:
        kernel: The shape of the kernel.
    """
    yield from dict.fromkeys((math.prod(kernel[:axis]), math.prod(kernel[axis:])) for axis in range(1, len(kernel)))


def padded_otherwise(form: KernelForm) -> Iterator[KernelForm]:
    """Yields the forms of a convolution with other values behind the edge of what it reads; none of a dense layer.

    Args:
        form: A form.
    """
    modes: tuple[Padding, ...] = get_args(Padding) if form.matrix is None else ()
    yield from (replace(form, padding=mode) for mode in modes if mode != form.padding)


def forms(kernel: tuple[int, ...], read: tuple[int, ...], output: tuple[int, ...]) -> Iterator[KernelForm]:
    """Yields the forms that three shapes allow, and that take few products; none without elements.

    Args:
        kernel: The shape of the kernel.
        read: The shape of what its layer reads.
        output: The shape of the output of its layer.
    """
    if not read[:1] == output[:1] > (0,) or 0 in (*kernel, *read, *output):
        return
    if len(kernel) == 2 or not len(kernel) == len(read) == len(output):
        for matrix in matrices(kernel):
            for inputs, outputs in ((0, 1), (1, 0)):
                fits = math.prod(read) * matrix[outputs] == math.prod(output) * matrix[inputs]
                if fits and _ends_with(output, matrix[outputs]) and math.prod(read) * matrix[outputs] <= _MOST_PRODUCTS:
                    yield KernelForm(channels=-1, inputs=inputs, outputs=outputs, matrix=matrix)
    elif len(kernel) > 2:
        for channels, inputs, outputs in convolutions(kernel, read, output):
            space = max(np.delete(kernel, (inputs, outputs)).tolist())
            possible = (
                KernelForm(channels=channels, inputs=inputs, outputs=outputs, strides=strides, reach=reach)
                for reach in sorted({_REACH, space}, reverse=True)
                for strides in _strides(read, output, channels)
            )
            cheap = [form for form in possible if _is_cheap(read, output, form)]
            yield from (form for form in cheap if form.reach == cheap[0].reach)


def convolutions(
    kernel: tuple[int, ...], read: tuple[int, ...], output: tuple[int, ...]
) -> Iterator[tuple[int, int, int]]:
    """Yields the axis of the channels, and those of the kernel's inputs and outputs, that three shapes allow.

    Args:
        kernel: The shape of the kernel of a convolution.
        read: The shape of what its layer reads, of as many axes.
        output: The shape of the output of its layer, of as many axes.
    """
    last = len(kernel) - 1
    for channels in (last, 1):
        for inputs, outputs in ((last - 1, last), (1, 0), (0, 1), (last, last - 1)):
            fits = kernel[outputs] == output[channels] and read[channels] % kernel[inputs] == 0
            if fits and kernel[outputs] % (read[channels] // kernel[inputs]) == 0:
                yield channels, inputs, outputs


def _ends_with(shape: tuple[int, ...], size: int) -> bool:
    """Returns whether the last axes of a shape have so many elements."""
    return size in itertools.accumulate(reversed(shape), operator.mul)


def _is_cheap(read: tuple[int, ...], output: tuple[int, ...], form: KernelForm) -> bool:
    """Returns whether the gradients that a tap of a convolution can have are few enough products."""
    spaces = [np.delete(shape, (0, form.channels)).tolist() for shape in (read, output)]
    distances = math.prod(2 * reach + 1 for reach in _reaches(max(spaces, key=math.prod), form.reach))
    elements = distances * read[form.channels] * output[form.channels]
    return elements <= _MOST_ELEMENTS and elements * min(map(math.prod, spaces)) * read[0] <= _MOST_PRODUCTS


def _reaches(sizes: tuple[int, ...] | list[int], reach: int) -> list[int]:
    return [min(size, reach) for size in sizes]


def _strides(read: tuple[int, ...], output: tuple[int, ...], channels: int) -> Iterator[tuple[int, ...]]:
    """Yields the strides that sizes allow: padding and the size of the kernel change the quotient of sizes a little."""
    pairs = [sorted((read[axis], output[axis])) for axis in range(1, len(read)) if axis != channels]
    possible = [sorted({max(1, large // max(1, small)), -(-large // max(1, small))}) for small, large in pairs]
    yield from itertools.product(*possible)


def gradient_error(
    form: KernelForm,
    read: Array,
    arriving: Array,
    gradient: Array,
    *,
    reordered: bool = False,
    most: float = math.inf,
) -> float:
    """Returns the relative error of the gradient of a kernel that is made of what is read and of what arrives.

    Most values that are tried make no gradient at all, and all distances of all features are many products: a few
    features show that first.

    Args:
        form: How they belong together.
        read: What the layer reads.
        arriving: The gradient at its product.
        gradient: The gradient of the kernel.
        reordered: Whether the layer may read its features in another order.
        most: The largest error of interest.

    Returns:
        The error; infinity where a few features have more than the largest of interest, or the kernel of a convolution
            is of another number of channels.
    """
    (error,) = gradient_errors(form, read, arriving, [gradient], reordered=reordered, most=most)
    return error


def gradient_errors(
    form: KernelForm, read: Array, arriving: Array, gradients: Sequence[Array], *, reordered: bool = False,
    most: float = math.inf,
) -> list[float]:  # fmt: skip
    """Returns the errors of several gradients of one shape, as `gradient_error`: what taps can have is made once."""
    found = [math.inf] * len(gradients)
    if not gradients or (form.matrix is None and read.shape[form.channels] % gradients[0].shape[form.inputs]):
        return found
    left = [*range(len(gradients))]
    if most < math.inf and form.matrix is None:
        (few_read, few_arriving, _), *_ = few = [_of_few_features(form, read, arriving, each) for each in gradients]
        errors = gradient_errors(form, few_read, few_arriving, [kernel for *_, kernel in few])
        lengths = [float(np.linalg.norm(kernel)) for *_, kernel in few]
        left = [at for at in left if errors[at] * lengths[at] <= most * float(np.linalg.norm(gradients[at]))]
        if not left:
            return found
    possible = form.possible(read, arriving, form.taps(gradients[0]).shape[1])
    rows = possible.reshape(len(possible), -1)
    for at in left:
        taps = form.taps(gradients[at])
        if reordered:
            found[at] = _error_of_features(taps[0], possible[0])
            continue
        squares = [float(np.square(rows - tap.reshape(-1)).sum(1).min()) for tap in taps]
        found[at] = math.sqrt(sum(squares)) / max(float(np.linalg.norm(gradients[at])), 1e-300)
    return found


def _of_few_features(form: KernelForm, read: Array, arriving: Array, gradient: Array) -> tuple[Array, Array, Array]:
    """Returns what the first group of channels of a convolution has of its tensors, of the first inputs alone."""
    inputs, outputs = gradient.shape[form.inputs], gradient.shape[form.outputs]
    few, own = range(min(inputs, _FEW_FEATURES)), range(outputs // (read.shape[form.channels] // inputs))
    kernel = gradient.take(few, form.inputs).take(own, form.outputs)
    return read.take(few, form.channels), arriving.take(own, form.channels), kernel


def _error_of_features(found: Array, possible: Array) -> float:
    """Returns the relative error of features that are each others in some order; infinity where none is."""
    if len(found) > _MOST_FEATURES:
        return math.inf
    squares = np.square(found).sum(1)[:, None] + np.square(possible).sum(1)[None, :] - 2 * found @ possible.T
    order = squares.argmin(1)
    if len({*order.tolist()}) < len(order):
        return math.inf
    return float(np.linalg.norm(found - possible[order]) / max(float(np.linalg.norm(found)), 1e-300))
