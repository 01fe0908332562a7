"""Plain steps cannot be at fault by themselves; a normalisation's own scale can.

A product with a kernel that both programs have is what it is, and so is a step that only arranges values. A layer that
normalises differs by a factor for each group of values where its own scale is another, as with another epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.correlations import matrices
from gradscope.comparison.diagnosis.suspects.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Match
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import PARAM, key_of, split_key

#: The relative error of a product that is computed again.
_ROUNDING: Final = 1e-4

#: The share of a difference that factors leave where it is one of scale.
_UNEXPLAINED: Final = 0.05

#: The least number of elements of which a factor says anything.
_LEAST_GROUP: Final = 6


def is_product(tensors: FloatTensors, layer: Layer, key: str) -> bool:
    """Returns whether an output is the product of what its layer reads with a kernel, plus a bias or not.

    Args:
        tensors: The tensors of the dump.
        layer: The layer; where it has several outputs, they may be parts of one product.
        key: The key of its output.
    """
    outputs = [tensors.tensor(key_of(split_key(key)[0], name)) for name in layer.outputs]
    parts, params = [each for each in outputs if each is not None], list(_params(tensors, layer))
    alike = len({each.shape[:-1] for each in parts}) == 1 and all(each.ndim for each in parts)
    if len(parts) < len(outputs) or not params or not alike:
        return False
    value, (kernel, *biases) = np.concatenate(parts, -1), sorted(params, key=lambda each: each.size, reverse=True)
    return kernel.ndim > 1 and any(
        _is_product_of(read, turned, biases, value)
        for read in tensors.read_by(layer)
        for matrix in matrices(kernel.shape)
        for turned in (kernel.reshape(matrix), kernel.reshape(matrix).T)
        if read.size % len(turned) == 0
    )


def _is_product_of(read: Array, kernel: Array, biases: Sequence[Array], value: Array) -> bool:
    rows = read.reshape(-1, len(kernel))
    if len(rows) * kernel.shape[1] != value.size or any(bias.size != kernel.shape[1] for bias in biases):
        return False
    product = rows @ kernel + sum((bias.reshape(-1) for bias in biases), start=np.zeros(kernel.shape[1]))
    expected = value.reshape(len(rows), -1)
    return bool(np.linalg.norm(product - expected) <= _ROUNDING * np.linalg.norm(expected))


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


def is_normalisation(tensors: FloatTensors, layer: Layer) -> bool:
    """Returns whether a layer has a scale or a bias and no kernel.

    Args:
        tensors: The tensors of the dump.
        layer: The layer.
    """
    params = list(_params(tensors, layer))
    return bool(params) and all(each.ndim == 1 for each in params)


def is_rescaled(ref: FloatTensors, cand: FloatTensors, match: Match, layer: Layer) -> bool:
    """Returns whether the output of a normalisation differs by a factor for each of its groups of values.

    Args:
        ref: The tensors of the reference.
        cand: The tensors of the candidate.
        match: The pair of its outputs.
        layer: The layer in the reference.
    """
    one, others = ref.tensor(match.ref), [cand.tensor(key) for key in match.recipe.keys]
    stored = [each for each in others if each is not None]
    if one is None or len(stored) < len(others):
        return False
    other = match.recipe.made_of(stored)
    if one.shape != other.shape:
        return False
    biases = [np.zeros(1), *_params(ref, layer)]
    return any(
        _is_scaled(one - shift, other - shift, axes)
        for bias in biases
        for channels in range(1, one.ndim)
        if bias.size in (1, one.shape[channels])
        for shift in (bias.reshape(-1, *(1,) * (one.ndim - 1 - channels)),)
        for axes in _groups(one.ndim, channels)
    )


def _params(tensors: FloatTensors, layer: Layer) -> Iterator[Array]:
    """Yields the parameters of a layer; none where one of them is not known."""
    params = [tensors.tensor(key_of(PARAM, name)) for name in layer.params]
    known = [each for each in params if each is not None]
    yield from known if len(known) == len(params) else ()


def _groups(rank: int, channels: int) -> Iterator[tuple[int, ...]]:
    """Yields the axes of a group: the features of a position, a channel of an example, a channel of the batch."""
    space = tuple(axis for axis in range(1, rank) if axis != channels)
    yield from filter(None, ((channels,), space, (0, *space)))


def _is_scaled(one: Array, other: Array, axes: tuple[int, ...]) -> bool:
    if math.prod(one.shape[axis] for axis in axes) < _LEAST_GROUP:
        return False
    return bool(np.linalg.norm(other - _factors(one, other, axes) * one) <= _UNEXPLAINED * np.linalg.norm(other - one))


def _factors(one: Array, other: Array, axes: tuple[int, ...]) -> Array:
    """Returns the factor of each group by which one tensor comes nearest to another."""
    squares = np.square(one).sum(axes, keepdims=True)
    return (one * other).sum(axes, keepdims=True) / np.where(squares > 0, squares, 1)
