"""A layer that is right in both programs, and whose output differs, reads another value: its tensors show both.

- `order_of_channels`: a layer that scales and shifts channels, as a norm does, has those of one program in another
  order in the other.
- `normalises_another`: the outputs of a norm are normalised over the same values in both programs, with one scale and
  one bias, and differ by more than a factor for each group of values. So the norm is right.
- `multiplies_another`: the gradient of a kernel is that of a product with the value before it in one program and not in
  the other. That of the bias is the sum of what arrives at the output in both, so that nothing is between the product
  and the output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import DERIVATIVES
from gradscope.comparison.diagnosis.refuting.apart.correlations import (
    KernelForm,
    forms,
    gradient_error,
    padded_otherwise,
)
from gradscope.comparison.diagnosis.suspects.plain_steps import groups_of, is_scaled
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered

#: The relative error up to which gradients are those of what is read, and above which they are of something else.
_FITS: Final = 1e-4
_OTHER: Final = 1e-2

#: How far means are from zero and mean squares from one at most of what is normalised: an epsilon is added to these.
_NORMALISED: Final = 1e-2

#: The most parts of channels whose order is found.
_MOST_BLOCKS: Final = 16

#: The fewest values of a group that say anything.
_FEWEST: Final = 4


def normalises_another(value: Recovered, params: Sequence[Recovered]) -> bool:
    """Returns whether a norm is right in both programs, and reads another value in one of them.

    Args:
        value: What it computes.
        params: Its parameters.
    """
    for plain, channel in _unscaled(value, params):
        for axes in groups_of(plain.own.ndim, channel):
            if all(_is_normalised(each, axes) for each in plain):
                return not is_scaled(plain.own, plain.other, axes)
    return False


def order_of_channels(value: Recovered, params: Sequence[Recovered]) -> str:
    """Returns in which order the other program's layer has the channels that it scales and shifts, in words.

    Args:
        value: What it computes.
        params: Its parameters.

    Returns:
        The words; "" where the channels of one program are in no other order in the other.
    """
    for plain, channel in _unscaled(value, params):
        count = plain.own.shape[channel]
        for blocks in (each for each in range(2, _MOST_BLOCKS + 1) if count % each == 0):
            own, other = (np.split(each, blocks, channel) for each in plain)
            order = [next((at for at, one in enumerate(own) if _is_close(one, its)), -1) for its in other]
            if sorted(order) == [*range(blocks)] != order:
                return f"whose channels are in the order {order} of {blocks} parts"
    return ""


def _unscaled(value: Recovered, params: Sequence[Recovered]) -> Iterator[tuple[Recovered, int]]:
    """Yields what a layer scales and shifts in both programs, and the axis of its channels."""
    rank = value.own.ndim
    if rank < 2 or not 0 < len(params) < 3 or any(max(each.own.shape, default=0) != each.own.size for each in params):
        return
    for channel in dict.fromkeys((rank - 1, 1)):
        if any(each.own.size != value.own.shape[channel] for each in params):
            continue
        along = [-1 if axis == channel else 1 for axis in range(rank)]
        for scale, *rest in itertools.permutations(params):
            yield (
                Recovered(*(
                    (each - sum(bias[at].reshape(along) for bias in rest)) / scale[at].reshape(along)
                    for at, each in enumerate(value)
                )),
                channel,
            )  # fmt: skip


def _is_close(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(one - other) <= _FITS * np.linalg.norm(one))


def _is_normalised(value: Array, axes: tuple[int, ...]) -> bool:
    """Returns whether the mean square of each group of a value is one."""
    if math.prod(value.shape[axis] for axis in axes) < _FEWEST:
        return False
    return bool(np.all(np.abs(np.square(value).mean(axes) - 1) <= _NORMALISED))


def multiplies_another(
    read: Recovered, value: Recovered, arriving: Recovered, params: Sequence[Recovered], gradients: Sequence[Recovered]
) -> bool:
    """Returns whether a layer multiplies a value by its kernel in one program, and another one in the other.

    Args:
        read: The value before the layer, on which the programs agree.
        value: What it computes.
        arriving: The gradient that arrives there.
        params: Its parameters.
        gradients: Those of its parameters: of a kernel, and of a bias.
    """
    kernels, biases = ([each for each in gradients if (each.own.ndim > 1) is many] for many in (True, False))
    if len(kernels) != 1 or len(biases) != 1 or value.own.shape != arriving.own.shape:
        return False
    (kernel,), (bias,) = kernels, biases
    if _normalises_itself(kernel, params):
        return False
    for derivative in DERIVATIVES.values():
        sent = Recovered(*(each * derivative(made) for each, made in zip(arriving, value, strict=True)))
        if not _are_sums(sent, bias):
            continue
        every = list(forms(kernel.own.shape, read.own.shape, value.own.shape))
        for form in every:
            errors = [gradient_error(form, *tensors, most=_FITS) for tensors in zip(read, sent, kernel, strict=True)]
            others = [at for at, error in enumerate(errors) if error > _FITS]
            if len(others) == 1:
                (at,) = others
                padded = itertools.chain.from_iterable(padded_otherwise(each) for each in every)
                return not any(_is_product(each, read[at], sent[at], kernel[at]) for each in (*every, *padded))
    return False


def _normalises_itself(gradient: Recovered, params: Sequence[Recovered]) -> bool:
    """Returns whether one program divides a kernel by its own size, as weights are standardised: no scale of it counts.

    The gradient then is at right angles to the kernel, and no product with anything that is read.
    """
    for kernel in (each for each in params if each.own.shape == gradient.own.shape):
        along = [abs(float(np.vdot(*both))) for both in zip(kernel, gradient, strict=True)]
        sizes = [
            float(np.linalg.norm(one) * np.linalg.norm(other)) for one, other in zip(kernel, gradient, strict=True)
        ]
        if sum(each <= _FITS * size for each, size in zip(along, sizes, strict=True)) == 1:
            return True
    return False


def _are_sums(sent: Recovered, bias: Recovered) -> bool:
    """Returns whether the gradient of a bias is the sum of what arrives in both programs, along one of the axes."""
    rank, axes = sent.own.ndim, dict.fromkeys((sent.own.ndim - 1, 1))
    axes = [channel for channel in axes if 0 < channel < rank and sent.own.shape[channel] == bias.own.size]
    return any(all(_is_sum(each, its, channel) for each, its in zip(sent, bias, strict=True)) for channel in axes)


def _is_sum(sent: Array, bias: Array, channel: int) -> bool:
    made = np.moveaxis(sent, channel, -1).reshape(-1, bias.size).sum(0)
    return bool(np.any(bias) and np.linalg.norm(made - bias) <= _FITS * np.linalg.norm(bias))


def _is_product(form: KernelForm, read: Array, sent: Array, gradient: Array) -> bool:
    """Returns whether the gradient of a kernel is that of a product with a value, with any factor for each output."""
    if gradient_error(form, read, sent, gradient) <= _OTHER:
        return True
    taps = form.taps(gradient)
    possible = form.possible(read, sent, taps.shape[1])
    return all(_is_multiple(tap, possible) for tap in taps)


def _is_multiple(tap: Array, possible: Array) -> bool:
    """Returns whether a tap is one of those that are possible, but for a factor for each output."""
    limit = _OTHER * float(np.linalg.norm(tap))
    return any(np.linalg.norm(tap - factors * each) <= limit for each, factors in _factors(tap, possible))


def _factors(tap: Array, possible: Array) -> Iterator[tuple[Array, Array]]:
    for each in possible:
        squares = np.square(each).sum(0)
        yield each, (each * tap).sum(0) / np.where(squares > 0, squares, 1)
