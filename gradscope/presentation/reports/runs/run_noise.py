"""The report of a run shows the noise of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradscope.dump.record import Json
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.presentation.tables.over_time.run_tables import NoiseRow, noise_table
from gradscope.presentation.tables.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """A `RunNoise` is the noise of gradients at one step.

    Attributes:
        step: The step.
        rows: Of all trained parameters together, then of each.
    """

    step: int
    rows: tuple[NoiseRow, ...]

    def table(self) -> Table:
        """Returns the table."""
        return noise_table(self.step, self.rows)

    def to_json(self) -> dict[str, Json]:
        """Returns the step and the rows."""
        return {"step": self.step, "rows": [row.to_json() for row in self.rows]}


def run_noise(history: History, chosen: Mapping[int, TensorRow], step: int | None = None) -> RunNoise | None:
    """Returns the noise of gradients of a run.

    Args:
        history: Its history.
        chosen: The tensors that are shown, by number.
        step: The step; None for the last at which it was measured.

    Returns:
        The noise; None where none was measured.

    Raises:
        DumpError: The history is damaged.
    """
    if step is None:
        measured = history.noise(None)["step"]
        if not len(measured):
            return None
        step = int(measured[-1])
    found = history.noise_at(step)
    if not found:
        return None
    numbers = [None, *(number for number in chosen if number in found)]
    return RunNoise(
        step=step,
        rows=tuple(
            NoiseRow(tensor=None if number is None else chosen[number], noise=found.get(number, {}))
            for number in numbers
        ),
    )
