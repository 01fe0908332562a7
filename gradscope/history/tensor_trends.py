"""A trend summarises a series of numbers over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

#: The steps of which `Trend.slope` states the growth.
SLOPE_STEPS: Final = 100

#: The largest relative change of a statistic that may be the rounding of float32: there is no slope then.
_ROUNDING: Final = 1e-6

#: What a trend states of one statistic of a tensor: unit and meaning by column.
TRENDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "first": ("", "the statistic at the first recorded step at which the tensor was finite"),
        "last": ("", "the statistic at the last recorded step; NaN where the tensor is not finite there"),
        "slope": (
            f"powers of ten in {SLOPE_STEPS} steps",
            "how fast the statistic grows: the slope of a least-squares line through the logarithms of its magnitudes",
        ),
        "change": (
            "powers of ten",
            "by how much the statistic changed while the tensor was finite and not zero, up or down",
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A `Trend` summarises how a series developed.

    Attributes:
        first: Its first value; NaN where there is none.
        last: Its last value, likewise; NaN where the tensor is not finite at the end.
        slope: How many powers of ten it grows in 100 steps: the slope of the least-squares line through the decimal
            logarithms of its magnitudes; 0 where they differ by rounding, None where fewer than two of them are finite
            and not zero.
        change: By how many powers of ten it changed while the tensor was finite and not zero, up or down.
        grew: Whether that was up.
        values: The values in order; NaN where one is not known, infinite where the tensor is not finite.
        broken: Whether the tensor is not finite at the end.
    """

    first: float
    last: float
    slope: float | None
    change: float
    grew: bool
    values: tuple[float, ...]
    broken: bool

    @classmethod
    def of(cls, steps: np.ndarray, values: np.ndarray, nonfinite: np.ndarray) -> Trend:
        """Returns the trend of a statistic.

        Args:
            steps: The steps.
            values: Its values at them; what they are of a tensor that is not finite is of its finite elements alone.
            nonfinite: The numbers of elements of the tensor that are not finite; NaN where that is not known.
        """
        broken = nonfinite > 0
        values, shown = np.where(broken, np.nan, values), np.where(broken, np.inf, values)
        known = values[~np.isnan(values)]
        first, last = (float(known[0]), float(known[-1])) if known.size else (math.nan, math.nan)
        is_broken = bool(broken[-1:].any())
        change = _change(known)
        return cls(
            first=first, last=math.nan if is_broken else last, slope=_slope(steps, values), change=abs(change),
            grew=change > 0, values=tuple(map(float, shown)), broken=is_broken,
        )  # fmt: skip


def _change(known: np.ndarray) -> float:
    """Returns the powers of ten between the first magnitude and the last: a warm-up begins with updates of zero."""
    magnitudes = np.abs(known[known != 0])
    if magnitudes.size == 0:
        return 0.0
    first, last = map(float, (magnitudes[0], magnitudes[-1]))
    return math.inf if math.isinf(first) else math.log10(last) - math.log10(first)


def _slope(steps: np.ndarray, values: np.ndarray) -> float | None:
    usable = np.isfinite(values) & (values != 0)
    if usable.sum() < 2:
        return None
    at = steps[usable].astype(np.float64)
    magnitudes = np.abs(values[usable])
    if magnitudes.max() <= (1 + _ROUNDING) * magnitudes.min():
        return 0.0
    logarithms = np.log10(magnitudes)
    centred = at - at.mean()
    return float(SLOPE_STEPS * (centred @ (logarithms - logarithms.mean())) / (centred @ centred))
