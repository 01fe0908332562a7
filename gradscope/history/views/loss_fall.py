"""States whether the loss of a run has fallen, and how large its updates are, where it has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

#: The fewest losses that say so, of which the quarters are compared.
_FEWEST: Final = 20
_PARTS: Final = 4
#: A fall from the first quarter to the last by less than this share of the loss is small.
_SMALL: Final = 0.25
#: One from the first or the second quarter to the last by less than this share, or so few standard errors, is none.
_LEAST_FALL: Final = 0.04
_ERRORS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFall:
    """A `NoFall` is a loss that has hardly fallen.

    Attributes:
        count: How many losses each mean is of.
        start: The first loss of all.
        first: The mean of the first ones.
        second: That of as many behind these.
        last: That of the last ones.
        ratio: The norm of the updates over that of the parameters, the median of the recorded steps that make an
            update; 0 where none does, None if not known.
    """

    count: int
    start: float
    first: float
    second: float
    last: float
    ratio: float | None

    @property
    def verb(self) -> str:
        """What the loss has done, behind "has"."""
        if self.last - self.first > _SMALL * abs(self.first):
            return "risen"
        fell = self.start - self.last > _SMALL * abs(self.start)
        since = "risen" if self.last - self.first > _LEAST_FALL * abs(self.first) else "hardly"
        return f"fallen in its first steps, and {since} since" if fell else "hardly fallen"


def no_fall(steps: Mapping[str, np.ndarray], losses: Mapping[str, np.ndarray]) -> NoFall | None:
    """Returns how a loss has hardly fallen; None where it has, or where too few are known or one is not finite.

    Args:
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known.
    """
    values = losses["loss"]
    count = len(values) // _PARTS
    if len(values) < _FEWEST or not np.isfinite(values).all():
        return None
    parts = (values[:count], values[count : 2 * count], values[-count:])
    first, second, last = (float(part.mean()) for part in parts)
    if first - last > _SMALL * abs(first) or (_falls(parts[0], parts[2]) and _falls(parts[1], parts[2])):
        return None
    return NoFall(count=count, start=float(values[0]), first=first, second=second, last=last, ratio=_ratio(steps))


def _falls(before: np.ndarray, after: np.ndarray) -> bool:
    """Returns whether the mean of as many losses falls by more than noise, and by more than a little."""
    error = float(np.sqrt((before.var() + after.var()) / len(before)))
    return float(before.mean() - after.mean()) > max(_ERRORS * error, _LEAST_FALL * abs(float(before.mean())))


def _ratio(steps: Mapping[str, np.ndarray]) -> float | None:
    ratios = steps["update_norm"] / np.where(steps["param_norm"] > 0, steps["param_norm"], np.nan)
    known = ratios[np.isfinite(ratios)]
    # The last step is no measure: a schedule that has come to its end makes its update small, whatever others were.
    return None if not known.size else float(np.median(known[known > 0])) if (known > 0).any() else 0.0
