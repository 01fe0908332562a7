"""The core tier from a compiled step: the numbers that a device reduced, as a `TensorStats`."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.arrays.moments import Moments
from gradscope.arrays.reductions import Extremes, NonFinite, Reduction
from gradscope.stats.tensor_stats import TensorStats


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreNumbers:
    """What a compiled step reduces of one floating-point or complex tensor.

    The numbers from `mean` to `maximum` are over finite elements, of a complex tensor over magnitudes; they are ignored
    where `finite` is 0.

    Attributes:
        finite: Number of finite elements.
        mean: Arithmetic mean.
        std: Population standard deviation.
        rms: Root mean square. Not the sum of squares, which float32 overflows.
        minimum: The smallest element.
        maximum: The largest element.
        zeros: Number of zeros.
        nan: Number of NaNs.
        inf: Number of infinities of either sign.
    """

    finite: int
    mean: float
    std: float
    rms: float
    minimum: float
    maximum: float
    zeros: int
    nan: int
    inf: int


def stats_from_core(shape: tuple[int, ...], dtype: str, numbers: CoreNumbers) -> TensorStats:
    """The core tier of a tensor whose numbers a compiled step returned.

    Args:
        shape: The tensor's shape.
        dtype: Its logical dtype's name.
        numbers: Its numbers.

    Returns:
        The statistics.
    """
    reduction = Reduction(zeros=numbers.zeros, nonfinite=NonFinite(nan=numbers.nan, inf=numbers.inf, neginf=None))
    if numbers.finite:
        reduction += Reduction(
            zeros=0,
            nonfinite=NonFinite(nan=0, inf=0, neginf=None),
            extremes=Extremes(low=numbers.minimum, high=numbers.maximum),
            moments=Moments(count=numbers.finite, mean=numbers.mean, std=numbers.std, rms=numbers.rms),
        )
    return TensorStats(shape=shape, dtype=dtype, reduction=reduction)
