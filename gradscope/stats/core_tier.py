"""Makes a tensor's statistics, of the core tier or the full one, from the numbers that a compiled step has reduced."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.arrays.magnitudes import Magnitudes
from gradscope.arrays.moments import Moments
from gradscope.arrays.reductions import Extremes, NonFinite, Reduction
from gradscope.stats.tensor_stats import TensorStats


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreNumbers:
    """`CoreNumbers` are the reductions of one floating-point or complex tensor in a compiled step.

    The numbers from `mean` to `maximum` are over finite elements, or over the magnitudes of complex ones. They are
    ignored where `finite` is 0.

    Attributes:
        finite: Number of finite elements.
        mean: Arithmetic mean.
        std: Population standard deviation.
        rms: Root mean square. (The sum of squares would overflow float32.)
        minimum: The smallest element.
        maximum: The largest element.
        zeros: Number of zeros.
        nan: Number of NaNs.
        inf: Number of infinities of either sign.
        neginf: Number of negative infinities; None in the core tier.
        magnitudes: The reductions of magnitudes; None in the core tier.
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
    neginf: int | None = None
    magnitudes: Magnitudes | None = None


def stats_from_core(shape: tuple[int, ...], dtype: str, numbers: CoreNumbers) -> TensorStats:
    """Returns the statistics of a tensor that a compiled step has reduced, of the tier of the reductions.

    Args:
        shape: The tensor's shape.
        dtype: The logical dtype's name.
        numbers: The reductions.
    """
    extremes = Extremes(low=numbers.minimum, high=numbers.maximum)
    moments = Moments(count=numbers.finite, mean=numbers.mean, std=numbers.std, rms=numbers.rms)
    reduction = Reduction(
        zeros=numbers.zeros,
        nonfinite=NonFinite(nan=numbers.nan, inf=numbers.inf, neginf=numbers.neginf),
        extremes=extremes if numbers.finite else None,
        moments=moments if numbers.finite else None,
        magnitudes=numbers.magnitudes,
    )
    return TensorStats(shape=shape, dtype=dtype, reduction=reduction)
