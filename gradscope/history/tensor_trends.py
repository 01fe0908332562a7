"""A trend summarises a series of numbers over the steps of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

#: The steps of which `Trend.slope` states the growth.
SLOPE_STEPS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a series developed.

    Attributes:
        first: Its first value; NaN where there is none.
        last: Its last value, likewise.
        slope: How many powers of ten it grows in 100 steps: the slope of the least-squares line through the decimal
            logarithms of its magnitudes; None where fewer than two of them are finite and not zero.
        values: The values in order.
    """

    first: float
    last: float
    slope: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, steps: np.ndarray, values: np.ndarray) -> Trend:
        """Returns the trend of values at steps."""
        known = values[~np.isnan(values)]
        ends = (float(known[0]), float(known[-1])) if known.size else (math.nan, math.nan)
        return cls(first=ends[0], last=ends[1], slope=_slope(steps, values), values=tuple(map(float, values)))


def _slope(steps: np.ndarray, values: np.ndarray) -> float | None:
    usable = np.isfinite(values) & (values != 0)
    if usable.sum() < 2:
        return None
    at = steps[usable].astype(np.float64)
    logarithms = np.log10(np.abs(values[usable]))
    centred = at - at.mean()
    return float(SLOPE_STEPS * (centred @ (logarithms - logarithms.mean())) / (centred @ centred))
