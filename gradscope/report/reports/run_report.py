"""The reports of a run: its end, one of its steps, its trends, and one of its tensors over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.dump.manifest.manifest import Origin
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm, TensorRow
from gradscope.history.tensor_trends import Trend
from gradscope.history.value_histograms import ValueHistogram
from gradscope.naming import Selection
from gradscope.report.render.document import Document, Note, Notes
from gradscope.report.render.screen import BAD, Screen
from gradscope.report.reports.dump_report import origin_json, origin_notes
from gradscope.report.tables.histogram_table import histogram_table
from gradscope.report.tables.numbers import count, number
from gradscope.report.tables.run_tables import StepRow, TrendRow, series_table, step_tables, trend_table
from gradscope.report.tables.sparkline import sparkline

#: Version of the JSON: it increases when a key changes its meaning or is removed.
SCHEMA: Final = 1
#: Columns of the loss's sparkline.
_LOSS_WIDTH: Final = 40
#: The statistic whose trend is shown: of activations and their gradients, whose size depends on the batch, the rms.
_TREND_COLUMN: Final = {naming.ACTIVATION: "rms", naming.ACTIVATION_GRAD: "rms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """`Which` selects tensors of a run.

    Attributes:
        selection: By name or key.
        families: By family, `slot` for all of an optimizer's variables; None for all.
    """

    selection: Selection
    families: frozenset[str] | None = None

    def selects(self, tensor: TensorRow) -> bool:
        """Returns whether a tensor is selected."""
        families = {tensor.family, tensor.family.partition("/")[0]}
        chosen = self.families is None or bool(families & self.families)
        return chosen and self.selection.selects(tensor.name, tensor.key)

    def require_matches(self, tensors: Iterable[TensorRow]) -> None:
        """Refuses a pattern that selects none of these tensors.

        Raises:
            UsageError: There is one.
        """
        if self.selection.select:
            self.selection.require_matches([name for each in tensors for name in (each.name, each.key)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A `RunReport` presents a run: its loss, its alarms, and the tables of one step or the trends of all.

    Attributes:
        command: The command that reports, `train` or `show`.
        path: The run's folder, as the user named it.
        steps: What was recorded of each step, by column.
        alarms: What was wrong.
        shown: The rows of one step, in the order of the tables; empty for trends.
        at: The step that they are of; None for trends.
        trends: The trends; empty for one step.
        origins: Where what was not finite began, as far as that was searched.
        resumed_from: The number of steps before this command; None where it resumed nothing.
    """

    command: str
    path: str
    steps: Mapping[str, np.ndarray]
    alarms: tuple[Alarm, ...]
    shown: tuple[StepRow, ...] = ()
    at: int | None = None
    trends: tuple[TrendRow, ...] = ()
    origins: tuple[Origin, ...] = ()
    resumed_from: int | None = None

    def document(self, screen: Screen) -> Document:
        """Returns the tables, the alarms, and the facts about the run last."""
        tables = step_tables(self.shown) if self.at is not None else (trend_table(self.trends, unicode=screen.unicode),)
        alarms = (Note(label=each.rule, text=alarm_sentence(each), style=BAD) for each in self.alarms)
        facts = tuple(self._facts(screen))
        return (
            *tables, Notes(title=f"Alarms ({len(self.alarms):,})", notes=tuple(alarms)),
            Notes(title="Where it began", notes=origin_notes(self.origins)), Notes(notes=facts),
        )  # fmt: skip

    def rows(self) -> list[dict[str, Json]]:
        """Returns name, family and statistics of each row."""
        return [row.to_json() for row in (*self.shown, *self.trends)]

    def to_json(self) -> dict[str, Json]:
        """Returns the run, its loss and alarms, and the rows."""
        losses = self._losses()
        ends = {"first": float(losses[0]), "last": float(losses[-1])} if losses.size else {}
        found: dict[str, Json] = {
            "schema": SCHEMA,
            "command": self.command,
            "run": self.path,
            "steps": self._taken(),
            "recorded": len(self.steps["step"]),
            "step": self.at,
            "loss": {name: value for name, value in ends.items() if not math.isnan(value)},
            "alarms": [alarm_json(alarm) for alarm in self.alarms],
            "resumed_from": self.resumed_from,
            "rows": list(self.rows()),
            "origins": [origin_json(each) for each in self.origins] or None,
        }
        return {name: fact for name, fact in found.items() if fact is not None}

    def _facts(self, screen: Screen) -> Sequence[Note]:
        losses = self._losses()
        recorded = self.steps["step"]
        facts: dict[str, str] = {}
        if losses.size:
            line = sparkline(losses.tolist(), _LOSS_WIDTH, unicode=screen.unicode)
            facts["loss"] = f"{_shown(losses[0])} to {_shown(losses[-1])}  {line}"
        facts["recorded"] = f"{count(len(recorded))} of {count(self._taken())} steps"
        if self.at is not None:
            facts["tables"] = f"of step {self.at}"
        if self.resumed_from is not None:
            facts["resumed"] = f"after {count(self.resumed_from)} steps"
        facts["run"] = self.path
        return [Note(label=label, text=text) for label, text in facts.items()]

    def _losses(self) -> np.ndarray:
        return self.steps["loss"]

    def _taken(self) -> int:
        """Returns the number of steps up to the last recorded one."""
        recorded = self.steps["step"]
        return int(recorded[-1]) + 1 if len(recorded) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTensorReport:
    """A `RunTensorReport` presents one tensor over time.

    Attributes:
        path: The run's folder, as the user named it.
        key: The tensor's key.
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
        return [
            {name: value for name, value in zip(self.stats, row, strict=True) if not math.isnan(value)} for row in found
        ]

    def to_json(self) -> dict[str, Json]:
        """Returns the tensor's key, the rows, and the histograms, where there are any."""
        drawn: list[Json] = [
            {"step": step, "bins": list(each.bins), "counts": list(each.counts), "lower": each.lower.tolist(),
             "upper": each.upper.tolist()}
            for step, each in self.histograms.items()
        ]  # fmt: skip
        found: dict[str, Json] = {"schema": SCHEMA, "command": "show", "run": self.path, "tensor": self.key}
        return {**found, "rows": list(self.rows()), **({"histograms": drawn} if drawn else {})}


def step_report(
    command: str, path: str, history: History, step: int | None, *, which: Which | None = None,
    origins: tuple[Origin, ...] = (), resumed_from: int | None = None,
) -> RunReport:  # fmt: skip
    """Returns the report of one step of a run.

    Args:
        command: The command that reports.
        path: The run's folder, as the user named it.
        history: Its history.
        step: The step; None for the last recorded one.
        which: Which tensors; None for all.
        origins: Where what was not finite began.
        resumed_from: The number of steps before this command.

    Raises:
        UsageError: The step was not recorded.
        DumpError: The history is damaged.
    """
    steps = history.steps()
    if step is None and len(steps["step"]):
        step = int(steps["step"][-1])
    if step is None or step not in steps["step"]:
        raise UsageError(f"step {step} was not recorded", hint=_nearest(steps["step"], step))
    found, chosen = history.stats_at(step), _chosen(history, which)
    rows = tuple(StepRow(tensor=tensor, stats=found[at]) for at, tensor in chosen.items() if at in found)
    return RunReport(
        command=command, path=path, steps=steps, alarms=history.alarms(), shown=rows, at=step, origins=origins,
        resumed_from=resumed_from,
    )  # fmt: skip


def trends_report(path: str, history: History, *, which: Which | None = None) -> RunReport:
    """Returns the report of the trends of a run.

    Args:
        path: The run's folder, as the user named it.
        history: Its history.
        which: Which tensors; None for all.

    Raises:
        DumpError: The history is damaged.
    """
    found = history.columns(("l2", "rms"))
    rows = tuple(
        TrendRow(tensor=tensor, column=column, trend=Trend.of(found[at]["step"], found[at][column]))
        for at, tensor in _chosen(history, which).items()
        if at in found
        for column in [_TREND_COLUMN.get(tensor.family, "l2")]
    )
    return RunReport(command="show", path=path, steps=history.steps(), alarms=history.alarms(), trends=rows)


def run_tensor_report(path: str, history: History, key: str) -> RunTensorReport:
    """Returns the report of one tensor of a run over time.

    Raises:
        UsageError: The run has no such tensor.
        DumpError: The history is damaged.
    """
    at = history.number_of(key)
    return RunTensorReport(
        path=path, key=key, stats=history.stats_of(at), histograms=history.histograms_of(at)
    )  # fmt: skip


def _chosen(history: History, which: Which | None) -> dict[int, TensorRow]:
    """Returns the selected tensors by number, in the order of the step.

    Raises:
        UsageError: A pattern selects nothing.
    """
    if which is None:
        return history.tensors
    which.require_matches(history.tensors.values())
    return {number: tensor for number, tensor in history.tensors.items() if which.selects(tensor)}


def _nearest(recorded: np.ndarray, step: int | None) -> str:
    if step is None or not len(recorded):
        return "no step was recorded yet"
    near = sorted(recorded.tolist(), key=lambda each: (abs(each - step), each))[:2]
    return f"recorded are {' and '.join(map(str, sorted(near)))}" if len(near) > 1 else f"recorded is {near[0]}"


def _shown(value: float) -> str:
    return "not a number" if math.isnan(value) else number(float(value))


def alarm_sentence(alarm: Alarm) -> str:
    """Returns an alarm in words."""
    subject = "" if alarm.key is None else f"{alarm.key} "
    saved = "" if alarm.folder is None else f"; the state before it and its batch are in {alarm.folder}"
    return f"at step {alarm.step} {subject}{alarm.why}{saved}"


def alarm_json(alarm: Alarm) -> dict[str, Json]:
    """Returns an alarm as JSON; what it lacks is left out."""
    family, name = (None, None) if alarm.key is None else naming.split_key(alarm.key)
    facts: dict[str, Json] = {
        "step": alarm.step, "rule": alarm.rule, "family": family, "name": name, "why": alarm.why,
        "value": alarm.value, "limit": alarm.limit, "folder": alarm.folder,
    }  # fmt: skip
    return {name: fact for name, fact in facts.items() if fact is not None}
