"""Directional derivatives are taken along random directions, between nearby points, and may have a factor in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope.proof.claims import TOO_COARSE, Outcome

#: Number of random directions along which each claim is checked.
DIRECTIONS: Final = 2
#: How many seeds there are.
_SEEDS: Final = 1 << 64
#: The distance of a nearby point, relative to the size of the numbers.
_NEARBY: Final = 1e-3
#: Factors that differ by less than this besides their errors are one.
_SAME_FACTOR: Final = 1e-4
#: How far apart factors may be that solvers hide, as a share of how far one is from one.
_OF_FACTOR: Final = 0.1


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


def common_factor(outcomes: Sequence[Outcome]) -> float:
    """Returns the factor that wrong claims along several directions have in common; NaN where they have none.

    A claim may be within its tolerance along a direction in which it counts for little, and be wrong along another.
    The error of solvers hides a factor, and is smaller where they run longer; so the factors that agree best count, of
    those that are near the first: a loop that is no solver computes something else where it runs longer. They have to
    agree far better than they are apart from one, as an error of some elements alone has any factor.
    """
    found = {each.status for each in outcomes}
    if "wrong" not in found or not found <= {"wrong", "correct"}:
        return math.nan
    ways = list(zip(*((each.factor, *each.longer) for each in outcomes), strict=False))
    first = ways[0][0]
    solved = any(each.longer for each in outcomes)
    known = (way for way in ways if all(map(math.isfinite, way)))
    near = (way for way in known if not abs(way[0] - first) > TOO_COARSE * max(1.0, abs(first)))
    errors = sum(each.expected for each in outcomes if each.status == "wrong" or not each.longer) + _SAME_FACTOR

    def most(way: Sequence[float]) -> float:
        return min(errors, _OF_FACTOR * abs(way[0] - 1)) if solved else errors * max(1.0, abs(way[0]))

    alike = [way for way in near if max(way) - min(way) <= most(way)]
    return min(alike, key=lambda way: max(way) - min(way))[0] if alike else math.nan


def rounded_factor(factor: float) -> float:
    """Returns a factor to six digits, or to as many as tell it from one."""
    apart = abs(factor - 1.0)
    digits = max(6, 2 - math.floor(math.log10(apart))) if 0 < apart < 1 else 6
    return float(f"{factor:.{digits}g}") + 0.0  # a zero without a sign
