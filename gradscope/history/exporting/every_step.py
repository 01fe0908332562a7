"""Every step of a run has numbers: a recorded one many, any other one its loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from gradscope.history.history_reader import History

#: Steps whose numbers are objects at the same time.
_STEPS_AT_ONCE: Final = 4_096


def every_step(history: History) -> Iterator[tuple[int, Mapping[str, float], bool]]:
    """Yields each step of which anything is known, in order: its number, its numbers, and whether it was recorded.

    Args:
        history: The history.

    Raises:
        DumpError: The history is damaged.
    """
    recorded, losses = history.steps(), history.losses()
    every = np.union1d(recorded["step"], losses["step"])
    for start in range(0, len(every), _STEPS_AT_ONCE):
        steps = every[start : start + _STEPS_AT_ONCE]
        rows = zip(steps.tolist(), _numbers(recorded, steps), _numbers(losses, steps), strict=True)
        for step, numbers, loss in rows:
            yield step, loss or {} if numbers is None else numbers, numbers is not None


def _numbers(table: Mapping[str, np.ndarray], steps: np.ndarray) -> Iterator[dict[str, float] | None]:
    """Yields the numbers that a table has of each step; None where it has no such step."""
    known = table["step"]
    if not len(known):
        yield from [None] * len(steps)
        return
    at = np.searchsorted(known, steps).clip(max=len(known) - 1)
    names = [name for name in table if name != "step"]
    columns = (table[name][at].tolist() for name in names)
    for is_known, *values in zip((known[at] == steps).tolist(), *columns, strict=True):
        numbers = {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}
        yield numbers if is_known else None
