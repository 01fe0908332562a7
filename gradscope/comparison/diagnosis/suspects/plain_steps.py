"""Steps that cannot be at fault by themselves, and layers whose own scale is.

A product with a kernel that both programs have is what it is, and so is a step that only arranges values. A layer that
normalises differs by a factor for each group of values where its own scale is another, as with another epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Match
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import PARAM, key_of

#: The relative error of a product that is computed again.
_ROUNDING: Final = 1e-4

#: The share of a difference that factors leave where it is one of scale.
_UNEXPLAINED: Final = 0.05

#: The least number of elements of which a factor says anything.
_LEAST_GROUP: Final = 4


def is_product(tensors: FloatTensors, layer: Layer, key: str) -> bool:
    """Returns whether an output is the product of what its layer reads with a kernel, plus a bias or not.

    Args:
        tensors: The tensors of the dump.
        layer: The layer.
        key: The key of its output.
    """
    value, params = tensors.tensor(key), [tensors.tensor(key_of(PARAM, name)) for name in layer.params]
    stored = [each for each in params if each is not None]
    if value is None or not stored or len(stored) < len(params):
        return False
    kernel, *biases = sorted(stored, key=lambda each: each.size, reverse=True)
    limit = _ROUNDING * float(np.linalg.norm(value))
    for read in tensors.read_by(layer):
        rows, features = read.reshape(-1, read.shape[-1]), read.shape[-1]
        for each in (kernel, kernel.T):
            if kernel.ndim < 2 or each.shape[0] != features or len(rows) * (kernel.size // features) != value.size:
                continue
            product = rows @ each.reshape(features, -1) - value.reshape(len(rows), -1)
            if all(bias.size == product.shape[1] for bias in biases):
                if np.linalg.norm(product + sum(bias.reshape(-1) for bias in biases)) <= limit:
                    return True
    return False


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


def is_rescaled(ref: FloatTensors, cand: FloatTensors, match: Match, layer: Layer) -> bool:
    """Returns whether the output of a layer that normalises differs by a factor for each of its groups of values.

    Args:
        ref: The tensors of the reference.
        cand: The tensors of the candidate.
        match: The pair of its outputs.
        layer: The layer in the reference.
    """
    params = [ref.tensor(key_of(PARAM, name)) for name in layer.params]
    biases = [np.zeros(1), *(each for each in params if each is not None)]
    one, others = ref.tensor(match.ref), [cand.tensor(key) for key in match.recipe.keys]
    if not params or any(each.ndim != 1 for each in biases) or one is None:
        return False
    stored = [each for each in others if each is not None]
    if len(stored) < len(others):
        return False
    other = match.recipe.made_of(stored)
    if one.shape != other.shape:
        return False
    return any(
        _is_scaled(one - shift, other - shift, axes)
        for bias in biases
        for channels in range(1, one.ndim)
        if bias.size in (1, one.shape[channels])
        for shift in (bias.reshape(-1, *(1,) * (one.ndim - 1 - channels)),)
        for axes in _groups(one.ndim, channels)
    )


def _groups(rank: int, channels: int) -> Iterator[tuple[int, ...]]:
    """Yields the axes of a group: the features of a position, a channel of an example, a channel of the batch."""
    space = tuple(axis for axis in range(1, rank) if axis != channels)
    yield from filter(None, ((channels,), space, (0, *space)))


def _is_scaled(one: Array, other: Array, axes: tuple[int, ...]) -> bool:
    if math.prod(one.shape[axis] for axis in axes) < _LEAST_GROUP:
        return False
    squares = np.square(one).sum(axes, keepdims=True)
    factors = (one * other).sum(axes, keepdims=True) / np.where(squares > 0, squares, 1)
    return bool(np.linalg.norm(other - factors * one) <= _UNEXPLAINED * np.linalg.norm(other - one))
