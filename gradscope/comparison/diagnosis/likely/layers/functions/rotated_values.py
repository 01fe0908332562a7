"""`rotation_in_words` tells by which rotary positions a value is rotated (Su et al., 2021, RoFormer).

The angles are those between pairs of features of the value before and after, so that any base, beginning and factor of
positions is found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import brief

#: The shares of the features that are rotated, the first ones, by their words.
_SHARES: Final = {1.0: "", 0.5: ", of half of the features", 0.25: ", of a quarter of the features"}

#: The relative error up to which a value is rotated by angles, and the error of an angle.
_FITS: Final = 1e-4

#: How far a base may be from one of few digits.
_ROUNDED: Final = 1e-3

#: The fewest positions and pairs of features that show a base.
_FEWEST: Final = 2


def rotation_in_words(value: Array, read: Array) -> str:
    """Returns by what a value is what another is, rotated; "" where it is rotated by no positions.

    Args:
        value: The value `[..., features]`, of which any other axis may be that of the positions.
        read: What is rotated.
    """
    return next((words for each in _arranged(read, value.shape) if (words := _rotation(value, each))), "")


def _arranged(read: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Yields what is read in a shape, where its heads may be split off and moved.

    Args:
        read: What is read.
        shape: The shape.
    """
    if read.shape == shape:
        yield read
    elif read.ndim == len(shape) - 1 and read.size == math.prod(shape):
        split = read.reshape(*read.shape[:-1], -1, shape[-1])
        for axes in permutations(range(split.ndim - 1)):
            turned = split.transpose(*axes, split.ndim - 1)
            if turned.shape == shape:
                yield turned


def _rotation(value: Array, read: Array) -> str:
    """Returns by what a value is what another of its shape is, rotated; "" where it is rotated by no positions."""
    if value.ndim < 2 or value.shape[-1] < 2 * _FEWEST:
        return ""
    for share, of in _SHARES.items():
        width = int(value.shape[-1] * share)
        if width % 2 or width < 2 * _FEWEST or not _are_near(value[..., width:], read[..., width:]):
            continue
        for pairs, (one, other) in _paired(value[..., :width], read[..., :width]):
            for axis in range(value.ndim - 1):
                angles = _angles(np.moveaxis(one, axis, 0), np.moveaxis(other, axis, 0))
                words = "" if angles is None else _in_words(angles, of)
                if words:
                    return f"rotary positions of {pairs} and {words}"
    return ""


def _paired(value: Array, read: Array) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Yields both values as complex numbers of the features that may be rotated together."""
    half = value.shape[-1] // 2
    yield "halves", (value[..., :half] + 1j * value[..., half:], read[..., :half] + 1j * read[..., half:])
    yield "neighbours", (value[..., ::2] + 1j * value[..., 1::2], read[..., ::2] + 1j * read[..., 1::2])


def _angles(value: Array, read: Array) -> Array | None:
    """Returns the angles `[positions, pairs of features]`; None where a value is not rotated by angles."""
    if len(value) < _FEWEST:
        return None
    others = tuple(range(1, value.ndim - 1))
    turns = (value * read.conj()).sum(others)
    size = np.abs(turns)
    turns = turns / np.where(size > 0, size, 1)
    made = read * turns.reshape(len(turns), *(1,) * len(others), -1)
    return np.angle(turns) if _are_near(made, value) else None


def _in_words(angles: Array, share: str) -> str:
    """Returns the base of angles, and what else is not as usual; "" where they are of no positions.

    Args:
        angles: The angles `[positions, pairs of features]`.
        share: The share of the features that is rotated, in words; "" for all.
    """
    count, pairs = angles.shape
    step, begin = _turn(angles[1, 0] - angles[0, 0]), angles[0, 0]
    second = _turn(angles[1, 1] - angles[0, 1])
    if abs(step) <= _FITS or second / step <= 0:
        return ""
    base = (second / step) ** -pairs
    rounded = float(f"{base:.3g}")
    base = rounded if abs(base - rounded) <= _ROUNDED * base else base
    first = begin / step
    first = round(first) if abs(first - round(first)) <= _ROUNDED else first
    made = (np.arange(count)[:, None] + first) * step * base ** (-np.arange(pairs) / pairs)
    if base <= 1 or np.abs(np.exp(1j * made) - np.exp(1j * angles)).max() > _ROUNDED:
        return ""
    told = f"base {brief(base)}{share}"
    told += f", positions times {brief(abs(step))}" if not math.isclose(abs(step), 1, rel_tol=_ROUNDED) else ""
    told += f", the first position {first:g}" if first else ""
    return told + (", turned backwards" if step < 0 else "")


def _turn(angle: float) -> float:
    """Returns an angle between minus and plus pi."""
    return float(np.angle(np.exp(1j * angle)))


def _are_near(made: Array, value: Array) -> bool:
    return bool(np.linalg.norm(made - value) <= _FITS * np.linalg.norm(value)) or not value.size
