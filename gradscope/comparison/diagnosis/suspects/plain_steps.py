"""Plain steps cannot be at fault by themselves; a normalisation's own scale can.

A product with a kernel that both programs have is what it is, and so is a step that only arranges values. A layer that
normalises differs by a factor for each group of values where its own scale is another, as with another epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import ne
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.kernel_products import params_of
from gradscope.comparison.diagnosis.step_kinds import recognised
from gradscope.comparison.pairing.matching import Match
from gradscope.dump.manifest.manifest import Layer

#: The share of a difference that factors leave where it is one of scale.
_UNEXPLAINED: Final = 0.05

#: The relative error up to which two values are multiples of each other.
_PARALLEL: Final = 1e-4

#: The least number of elements of which a factor says anything.
_LEAST_GROUP: Final = 6


def is_arrangement(tensors: FloatTensors, layer: Layer, key: str) -> bool:
    """Returns whether an output has the values that its layer reads, whatever their order and shape.

    Args:
        tensors: The tensors of the dump.
        layer: The layer.
        key: The key of its output.
    """
    value, read = tensors.tensor(key), list(tensors.read_by(layer))
    if value is None or not read or sum(each.size for each in read) != value.size:
        return False
    return np.array_equal(np.sort(value, None), np.sort(np.concatenate([each.reshape(-1) for each in read])))


def is_recognised(tensors: FloatTensors, layer: Layer, key: str) -> bool:
    """Returns whether an output is a well-known function of one value.

    Args:
        tensors: The tensors of the dump.
        layer: The layer.
        key: The key of its output.
    """
    value, read = tensors.tensor(key), list(tensors.read_by(layer))
    if value is None or len(read) != 1:
        return False
    return any(any(recognised(each, value)) for each in _trimmed(read[0], value))


def _trimmed(read: Array, value: Array) -> Iterator[Array]:
    """Yields a value, or its beginning and end where another is shorter, as where causal padding is cut off."""
    yield read
    # Half of a value or less is rather one of those that were joined in it.
    is_shorter = value.size < read.size < 2 * value.size and read.ndim == value.ndim
    if is_shorter and sum(map(ne, read.shape, value.shape)) == 1:
        yield read[tuple(map(slice, value.shape))]
        yield read[tuple(slice(-size, None) for size in value.shape)]


def is_normalisation(tensors: FloatTensors, layer: Layer) -> bool:
    """Returns whether a layer has a scale or a bias and no kernel.

    Args:
        tensors: The tensors of the dump.
        layer: The layer.
    """
    params = list(params_of(tensors, layer))
    return bool(params) and all(each.ndim == 1 for each in params)


def is_rescaled(ref: FloatTensors, cand: FloatTensors, match: Match, layer: Layer) -> bool:
    """Returns whether the output of a normalisation differs by a factor for each of its groups of values.

    Args:
        ref: The tensors of the reference.
        cand: The tensors of the candidate.
        match: The pair of its outputs.
        layer: The layer in the reference.
    """
    one, other = ref.tensor(match.ref), cand.made(match.recipe)
    if one is None or other is None or one.shape != other.shape:
        return False
    biases = [np.zeros(1), *params_of(ref, layer)]
    return any(
        is_scaled(one - shift, other - shift, axes)
        for bias in biases
        for channels in range(1, one.ndim)
        if bias.size in (1, one.shape[channels])
        for shift in (bias.reshape(-1, *(1,) * (one.ndim - 1 - channels)),)
        for axes in groups_of(one.ndim, channels)
    )


def is_multiple(ref: FloatTensors, cand: FloatTensors, match: Match) -> bool:
    """Returns whether the candidate's value of a pair is a multiple of the reference's, which no arrangement makes.

    Args:
        ref: The tensors of the reference.
        cand: The tensors of the candidate.
        match: The pair.
    """
    one, other = ref.tensor(match.ref), cand.made(match.recipe)
    if one is None or other is None or one.shape != other.shape or one.size < _LEAST_GROUP:
        return False
    return bool(
        np.linalg.norm(other - _factors(one, other, tuple(range(one.ndim))) * one) <= _PARALLEL * np.linalg.norm(other)
    )


def groups_of(rank: int, channels: int) -> Iterator[tuple[int, ...]]:
    """Yields the axes of a group: the features of a position, a channel of an example, a channel of the batch.

    Args:
        rank: The number of axes.
        channels: That of the channels.
    """
    space = tuple(axis for axis in range(1, rank) if axis != channels)
    yield from filter(None, ((channels,), space, (0, *space)))


def is_scaled(one: Array, other: Array, axes: tuple[int, ...]) -> bool:
    """Returns whether one value is another with a factor for each group of values.

    Args:
        one: The value.
        other: The other value.
        axes: The axes of a group.
    """
    if math.prod(one.shape[axis] for axis in axes) < _LEAST_GROUP:
        return False
    return bool(np.linalg.norm(other - _factors(one, other, axes) * one) <= _UNEXPLAINED * np.linalg.norm(other - one))


def _factors(one: Array, other: Array, axes: tuple[int, ...]) -> Array:
    """Returns the factor of each group by which one tensor comes nearest to another."""
    squares = np.square(one).sum(axes, keepdims=True)
    return (one * other).sum(axes, keepdims=True) / np.where(squares > 0, squares, 1)
