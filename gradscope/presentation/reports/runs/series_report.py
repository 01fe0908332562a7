"""These reports show one tensor of a run over time, or one of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradscope.dump.record import Json
from gradscope.errors import MissingKeyError
from gradscope.history.history_reader import History
from gradscope.history.history_rows import known_numbers
from gradscope.history.value_histograms import ValueHistogram
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.runs.run_report import SCHEMA
from gradscope.presentation.tables.over_time.histogram_table import histogram_table
from gradscope.presentation.tables.over_time.run_tables import series_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTensorReport:
    """A `RunTensorReport` presents one tensor, or one number of the steps, over time.

    Attributes:
        path: The run's folder, as the user named it.
        key: The tensor's key, or the number's name.
        stats: Its statistics by column, and `step`.
        histograms: Its histograms by step; empty where none were recorded.
    """

    path: str
    key: str
    stats: Mapping[str, np.ndarray]
    histograms: Mapping[int, ValueHistogram]

    def document(self, screen: Screen) -> Document:
        """Returns a table with a line for each step, and one of the histograms."""
        drawn = histogram_table(self.histograms, unicode=screen.unicode)
        return (
            series_table(self.key, self.stats), *((drawn,) if self.histograms else ()),
            Notes(notes=(Note(label="run", text=self.path),)),
        )  # fmt: skip

    def rows(self) -> list[dict[str, Json]]:
        """Returns a row for each step: its number, and the statistics that are known."""
        found = zip(*(values.tolist() for values in self.stats.values()), strict=True)
        return [known_numbers(dict(zip(self.stats, row, strict=True))) for row in found]

    def to_json(self) -> dict[str, Json]:
        """Returns the tensor's key, the rows, and the histograms, where there are any."""
        drawn: list[Json] = [
            {"step": step, "bins": list(each.bins), "counts": list(each.counts), "lower": each.lower.tolist(),
             "upper": each.upper.tolist()}
            for step, each in self.histograms.items()
        ]  # fmt: skip
        found: dict[str, Json] = {"schema": SCHEMA, "command": "show", "run": self.path, "tensor": self.key}
        return {**found, "rows": list(self.rows()), **({"histograms": drawn} if drawn else {})}


def run_tensor_report(path: str, history: History, key: str) -> RunTensorReport:
    """Returns the report of one tensor of a run over time, or of one of the numbers of its steps.

    Args:
        path: The run's folder, as the user named it.
        history: Its history.
        key: The tensor's key, or a number's name, such as `loss`.

    Raises:
        MissingKeyError: The run has neither.
        DumpError: The history is damaged.
    """
    steps, losses = history.steps(), history.losses()
    numbers = {name: {"step": steps["step"], name: values} for name, values in steps.items()} | {"loss": losses}
    numbers = {name: each for name, each in numbers.items() if name != "step" and not np.isnan(each[name]).all()}
    if key in numbers:
        return RunTensorReport(path=path, key=key, stats=numbers[key], histograms={})
    try:
        at = history.number_of(key)
    except MissingKeyError as error:
        joint = " The" if (error.hint or "").endswith("?") else "; the"
        hint = f"{error.hint}{joint} numbers of each step are {', '.join(numbers)}" if numbers else error.hint
        raise MissingKeyError(error.message, hint=hint) from None
    return RunTensorReport(
        path=path, key=key, stats=history.stats_of(at), histograms=history.histograms_of(at)
    )  # fmt: skip
