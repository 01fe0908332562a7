"""Computes count, mean, standard deviation and norms of finite elements in float64, and merges those of two blocks.

Blocks merge by the update of Chan, Golub and LeVeque. Moments hold root mean squares instead of sums of squares, and
merge them with `hypot`. So tensors of 1e200 or 1e-200 have a norm, and scaling the data by a power of two scales every
moment exactly.

Accuracy: relative errors stay below 1e-9 for any finite input (tested against exact sums; 1e-12 is typical).

References:
    T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance", The American Statistician
    37 (1983) 242-247.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.scratch import ScratchSlot, scratch

#: OpenBLAS splits a dot product of more than 10,000 elements among threads, which compete with the threads that work on
#: other tensors. Dot products of this size stay on the calling thread.
_ROW_ELEMENTS: Final = 8192


def inner(first: Array, second: Array) -> float:
    """Returns the inner product of two one-dimensional arrays of equal size and dtype, on the calling thread.

    It is computed in rows of `_ROW_ELEMENTS`, whose products are summed in float64.
    """
    rows = first.size // _ROW_ELEMENTS
    end = rows * _ROW_ELEMENTS
    by_row = np.matmul(first[:end].reshape(rows, 1, _ROW_ELEMENTS), second[:end].reshape(rows, _ROW_ELEMENTS, 1))
    return float(by_row.sum(dtype=np.float64) + np.dot(first[end:], second[end:]))


#: Squares of magnitudes in this range, and sums of 2^60 of them, neither overflow nor lose digits in float64.
_SQUARABLE: Final = (2.0**-450, 2.0**450)

#: The corresponding range in float32, for sums of 2^20 squares. It has to contain the largest magnitude of a block;
#: much smaller ones do not change the sum.
_NARROW_SQUARABLE: Final = (2.0**-30, 2.0**50)

#: Smallest ratio of variance to mean square at which float32 resolves the variance.
_NARROW_CANCELLATION: Final = 0.1

#: Smallest ratio of variance to mean square at which `mean_square - mean**2` keeps nine digits of the variance.
_CANCELLATION: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """`Moments` are those of one or more finite elements.

    Attributes:
        count: Number of elements.
        mean: Arithmetic mean.
        std: Population standard deviation (ddof 0).
        rms: Root mean square.
    """

    count: int
    mean: float
    std: float
    rms: float

    @property
    def l2(self) -> float:
        """Euclidean norm."""
        return self.rms * math.sqrt(self.count)

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        here, there = self.count / count, other.count / count
        root_here, root_there = math.sqrt(here), math.sqrt(there)
        # Halved, because the distance between two float64 numbers may overflow float64.
        half_apart = other.mean / 2 - self.mean / 2
        return Moments(
            count=count,
            mean=self.mean + half_apart * (2 * there) if there <= here else other.mean - half_apart * (2 * here),
            std=math.hypot(self.std * root_here, other.std * root_there, half_apart * (2 * root_here * root_there)),
            rms=math.hypot(self.rms * root_here, other.rms * root_there),
        )


def moments_of(values: Array, total: float, low: float, high: float) -> Moments:
    """Returns the moments of a block.

    Args:
        values: One-dimensional, contiguous, float64, not empty, all finite.
        total: Their sum; ignored where it may have overflowed.
        low: The smallest of them.
        high: The largest of them.

    Returns:
        Their moments.
    """
    if low == high:
        # The mean is exact here, while the sum may be rounded. Adding zero turns the mean of negative zeros into zero.
        return Moments(count=values.size, mean=low + 0.0, std=0.0, rms=abs(low))
    largest = max(high, -low)
    if not _SQUARABLE[0] < largest < _SQUARABLE[1]:
        return _scaled_moments(values, math.frexp(largest)[1])
    mean = total / values.size
    mean_square = inner(values, values) / values.size
    std = math.sqrt(_variance(values, mean, mean_square))
    return Moments(count=values.size, mean=mean, std=std, rms=math.sqrt(mean_square))


def narrow_moments(values: Array, low: float, high: float) -> Moments | None:
    """Returns the moments of a float32 block, computed in float32 at three times the speed; None where digits are lost.

    Accuracy: relative errors stay below 1e-5, which suffices for statistics of float32 data.

    Args:
        values: One-dimensional, contiguous, float32, not empty.
        low: The smallest of them.
        high: The largest of them.
    """
    largest = max(high, -low)
    if low == high or not _NARROW_SQUARABLE[0] < largest < _NARROW_SQUARABLE[1]:  # also where one is not finite
        return None
    mean, mean_square = float(values.sum()) / values.size, inner(values, values) / values.size
    variance = mean_square - mean * mean
    if not variance > _NARROW_CANCELLATION * mean_square:
        return None
    return Moments(count=values.size, mean=mean, std=math.sqrt(variance), rms=math.sqrt(mean_square))


def sum_of_magnitudes(values: Array, total: float, low: float, high: float) -> float:
    """Returns the l1 norm of a block; arguments as for `moments_of`."""
    # Elements of one sign, such as activations behind a rectifier, need no second pass.
    if low >= 0 or high <= 0:
        return abs(total)
    magnitudes = np.abs(values, out=scratch(ScratchSlot.WORK, values.size, np.float64))
    with np.errstate(over="ignore"):
        return float(magnitudes.sum())


def _scaled_moments(values: Array, exponent: int) -> Moments:
    scaled = np.ldexp(values, -exponent)
    moments = moments_of(scaled, float(scaled.sum()), float(scaled.min()), float(scaled.max()))
    return Moments(
        count=moments.count,
        mean=math.ldexp(moments.mean, exponent),
        std=math.ldexp(moments.std, exponent),
        rms=math.ldexp(moments.rms, exponent),
    )


def _variance(values: Array, mean: float, mean_square: float) -> float:
    difference = mean_square - mean * mean
    if difference > _CANCELLATION * mean_square:
        return difference
    centred = np.subtract(values, mean, out=scratch(ScratchSlot.WORK, values.size, np.float64))
    return inner(centred, centred) / values.size
