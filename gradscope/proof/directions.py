"""Directional derivatives are taken along random directions, between nearby points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

#: Number of random directions along which each claim is checked.
DIRECTIONS: Final = 2
#: How many seeds there are.
_SEEDS: Final = 1 << 64
#: The distance of a nearby point, relative to the size of the numbers.
_NEARBY: Final = 1e-3


class Directions:
    """Directions draws random directions, reproducibly by its seed.

    Args:
        seed: The seed, which may be negative, as a key's may.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed % _SEEDS)

    def along(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Returns a direction for each array: normal numbers, scaled to the root mean square of the array."""
        return [self._normal(array) * typical_size(array) for array in arrays]

    def nearby(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns a nearby point: each array moved a little in a random direction."""
        pairs = zip(arrays, self.along(arrays), strict=True)
        return [jnp.asarray(np.asarray(array) + (_NEARBY * moved).astype(moved.dtype)) for array, moved in pairs]

    def _normal(self, array: Any) -> np.ndarray:
        real = self._random.standard_normal(array.shape)
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            real = real + 1j * self._random.standard_normal(array.shape)
        return real.astype(array.dtype)


def typical_size(array: Any) -> Any:
    """Returns the root mean square of an array's finite elements in its dtype; 1 where they are all zero."""
    magnitudes = np.abs(np.asarray(array)).astype(np.float64)
    finite = magnitudes[np.isfinite(magnitudes)]
    size = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    return np.asarray(size or 1.0).astype(np.asarray(array).dtype)


def inner(gradient: Any, direction: Any) -> tuple[float, float]:
    """Returns the derivative along a direction by the gradient, and the root of the sum of its squared terms."""
    terms = np.real(np.asarray(gradient).astype(np.complex128) * np.asarray(direction).astype(np.complex128))
    return float(terms.sum()), float(np.sqrt((terms**2).sum()))
