"""States that all recorded steps of a run are between two updates, as of an optimizer that updates once in several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.history.history_reader import History

#: Recorded steps that say so.
_FEWEST: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenUpdates:
    """`BetweenUpdates` are recorded steps none of which updates a parameter, though the steps between them do.

    Attributes:
        count: How many there are.
        every: Steps from one of them to the next, in the median.
    """

    count: int
    every: int


def between_updates(history: History, steps: Mapping[str, np.ndarray]) -> BetweenUpdates | None:
    """Returns the recorded steps where all updates are zero, and parameters move meanwhile; None elsewhere.

    Args:
        history: The run's history.
        steps: What was recorded of each step, by column.

    Raises:
        DumpError: The history is damaged.
    """
    count = len(steps["step"])
    every = int(np.median(np.diff(steps["step"]))) if count >= _FEWEST else 1
    if every == 1 or (steps["update_norm"] != 0).any() or not (steps["grad_norm"] > 0).all():
        return None
    series = history.columns(("l2", "mean", "amax"))
    trained = {tensor.name for tensor in history.tensors.values() if tensor.family == naming.PARAM_GRAD}
    params = [series[number] for number, tensor in history.tensors.items()
              if tensor.family == naming.PARAM and tensor.name in trained and number in series]  # fmt: skip
    if not any((each[column] != each[column][0]).any() for each in params for column in ("l2", "mean", "amax")):
        return None
    return BetweenUpdates(count=count, every=every)
