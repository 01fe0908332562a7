"""Every step of a run has numbers: a recorded one many, any other one its loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gradscope.history.history_reader import History


def every_step(history: History) -> Iterator[tuple[int, Mapping[str, float], bool]]:
    """Yields each step of which anything is known, in order: its number, its numbers, and whether it was recorded.

    Args:
        history: The history.

    Raises:
        DumpError: The history is damaged.
    """
    recorded, losses = history.steps(), history.losses()
    columns = {name: values.tolist() for name, values in recorded.items() if name != "step"}
    known = dict(zip(losses["step"].tolist(), losses["loss"].tolist(), strict=True))
    places = {step: at for at, step in enumerate(recorded["step"].tolist())}
    for step in sorted({*places, *known}):
        at = places.get(step)
        numbers = {"loss": known[step]} if at is None else {name: values[at] for name, values in columns.items()}
        yield step, {name: value for name, value in numbers.items() if not math.isnan(value)}, at is not None
