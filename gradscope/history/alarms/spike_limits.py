"""`spike_limits` says what a number has to be above to be a spike among those before it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

#: A spike is above mean + `_DEVIATIONS` standard deviations of the last `SPIKE_WINDOW` values, of which there are at
#: least `_FEWEST`: the rule of OLMo-core and MaxText. In logarithms it is above mean + `_LOGARITHMIC_DEVIATIONS`, too:
#: the losses of small batches are skewed. Of six healthy runs of 2,000 steps at batch 16 the first alone called 77
#: steps spikes, both together none.
SPIKE_WINDOW: Final = 128
_FEWEST: Final = 64
_DEVIATIONS: Final = 6.0
_LOGARITHMIC_DEVIATIONS: Final = 5.0
#: Where the third largest logarithm is above so many standard deviations (a normal distribution has it at 2), the tail
#: is heavy, and the limit grows with the square of the excess. Of 1.5 million healthy steps at batch 1 to 64, with
#: targets that a network cannot fit or noise of Student's t, 388 are spikes without this and 35 with it. The third, so
#: that two spikes do not hide others.
_LIGHT_TAIL: Final = 1.8
_IN_TAIL: Final = 3
#: Values fall where a line through their logarithms explains this share of the variance. The limit is then that of
#: values which had stayed where the line has come to: of 420 wrong losses in descents, 3 to 8 times as large as they
#: would be, 254 are spikes by it and 196 without it (2026-11), of 252,000 right ones 8 and 6.
_DESCENT: Final = 0.5
#: The noise of a loss that falls may grow relative to it: its deviation is that of so many last values, where that is
#: more. Of 120,000 right losses of 300 descents with SGD, momentum and Adam 7 are spikes without it and 2 with it, and
#: of 900 wrong ones, 3 to 8 times as large as they would be, 453 and 481 (2026-11).
_LAST: Final = 32
#: What is so many times where a descent has come to is a spike, at least: what ends a descent is none.
_DESCENT_FACTOR: Final = 1.5
#: A spike is over below mean and so many deviations: a level that stays high moves its own limit, and is one spike.
_CALM: Final = 3.0
#: The least standard deviation, as a share of the mean: the rounding of a constant series is no spike.
_LEAST_SPREAD: Final = 1e-3

#: The largest power of e that is a float64.
_LARGEST_POWER: Final = 709.0


@np.errstate(over="ignore", invalid="ignore")  # of a run in float64 that diverges
def spike_limits(before: np.ndarray, value: float, least_factor: float) -> tuple[float, float]:
    """Returns what a value has to be above to be a spike, and the value below which the last spike is over.

    Args:
        before: Up to `SPIKE_WINDOW` values before it, in their order.
        value: The value.
        least_factor: How many times the mean of those before it a spike is at least.
    """
    if len(before) < _FEWEST:
        return math.inf, math.inf
    values = _level(before)
    falls = values is not before
    mean = float(values.mean())
    spread = max(_deviation(values, falls=falls), _LEAST_SPREAD * abs(mean))
    factor = max(least_factor, _DESCENT_FACTOR if falls else 0.0)
    limit = max(mean + _DEVIATIONS * spread, factor * mean)
    if value > limit and values.min() > 0:  # most values are below the first limit already
        logarithms = np.log(values)
        mean_power, spread_power = float(logarithms.mean()), _deviation(logarithms, falls=falls)
        tail = (float(np.sort(logarithms)[-_IN_TAIL]) - mean_power) / max(spread_power, _LEAST_SPREAD)
        power = mean_power + _LOGARITHMIC_DEVIATIONS * spread_power * max(1.0, tail / _LIGHT_TAIL) ** 2
        limit = max(limit, math.exp(min(power, _LARGEST_POWER)))
    return limit, mean + _CALM * spread


def _deviation(values: np.ndarray, *, falls: bool) -> float:
    return max(float(values.std()), float(values[-_LAST:].std()) if falls else 0.0)


def _level(values: np.ndarray) -> np.ndarray:
    """Returns values that fall as if they had stayed where their descent has come to; others as they are.

    A descent of the loss is no noise: it would hide a spike that is no higher than where the descent began.
    """
    if values.min() <= 0:
        return values
    logarithms, at = np.log(values), _places(len(values))
    around = logarithms - logarithms.mean()
    slope = float(around @ at) / float(at @ at)
    if slope >= 0 or slope * float(around @ at) < _DESCENT * float(around @ around):
        return values
    return np.exp(logarithms - slope * (at - (len(values) + 1) / 2))


@lru_cache
def _places(count: int) -> np.ndarray:
    return np.arange(count) - (count - 1) / 2
