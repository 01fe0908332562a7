"""States that a run makes no update, as its gradients are never finite and its step leaves out such updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Recorded steps that say so where losses are numbers: a dynamic loss scale that begins too high needs some to fit.
_FEWEST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutUpdates:
    """`LeftOutUpdates` are those of all recorded steps of a run.

    Attributes:
        count: How many there are.
    """

    count: int


def left_out_updates(steps: Mapping[str, np.ndarray], losses: Mapping[str, np.ndarray]) -> LeftOutUpdates | None:
    """Returns the updates that all recorded steps leave out; None where one makes an update, or too few are recorded.

    Args:
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known.
    """
    left_out = leaves_out(steps)
    few = len(left_out) < _FEWEST and not np.isnan(losses["loss"]).all()
    return None if few or not left_out.size or not left_out.all() else LeftOutUpdates(count=len(left_out))


def leaves_out(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns whether each recorded step leaves out its update, as its gradients are not finite.

    Args:
        steps: What was recorded of each step, by column.
    """
    return (steps["update_norm"] == 0) & ~np.isfinite(steps["grad_norm"])
