"""The reports of a run show its end, one of its steps, or its trends."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.dump.manifest.operation_facts import Origin
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.history.alarms.alarm_rules import command_at
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm
from gradscope.history.tensor_trends import Trend
from gradscope.history.views.at_step import not_recorded
from gradscope.history.views.learning import NOTHING_TO_SAY, Learning, learning
from gradscope.history.views.run_ending import alarm_origins, steps_taken
from gradscope.presentation.render.document import Document, Note, Notes, fitted
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.screen import BAD, Screen
from gradscope.presentation.reports.origins import origin_json, origin_notes
from gradscope.presentation.reports.runs.alarm_words import alarm_json, alarm_sentence, run_verdict, worst_alarm
from gradscope.presentation.reports.runs.model_command import dump_command
from gradscope.presentation.reports.runs.run_annotations import run_annotations
from gradscope.presentation.reports.runs.run_facts import run_facts
from gradscope.presentation.reports.runs.run_noise import RunNoise, run_noise
from gradscope.presentation.reports.runs.which_tensors import Which, chosen_tensors
from gradscope.presentation.tables.over_time.folded_trends import folded_trends
from gradscope.presentation.tables.over_time.run_tables import (
    SPARKLINE_WIDTH,
    StepRow,
    TrendRow,
    first_lines,
    step_tables,
    trend_table,
)
from gradscope.presentation.tables.sorting import sorted_rows

#: Version of the JSON: it increases when a key changes its meaning or is removed.
SCHEMA: Final = 1
#: Columns of a terminal below which the sparklines of trends are shorter, and the columns that they have then.
_WIDE: Final = 100
_NARROW_SPARKLINE: Final = 12
#: On one screen, the most alarms beside the worst, and the fewest lines of trends.
_MOST_ALARMS: Final = 4
_FEWEST_TRENDS: Final = 3
#: The statistic whose trend is shown: of activations and their gradients, whose size depends on the batch, the rms; of
#: updates what they are of the parameter, where that is known; of others the norm.
_TREND_COLUMN: Final = {naming.ACTIVATION: "rms", naming.ACTIVATION_GRAD: "rms", naming.UPDATE: "ratio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A `RunReport` presents a run: its loss, its alarms, and the tables of one step or the trends of all.

    Attributes:
        command: The command that reports, `train` or `show`.
        path: The run's folder, as the user named it.
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known, recorded or not.
        taken: How many steps the run has taken.
        alarms: What was wrong.
        shown: The rows of one step, in the order of the tables; empty for trends.
        at: The step that they are of; None for trends.
        trends: The trends; empty for one step.
        origins: Where what was not finite began, as far as that was searched.
        resumed_from: The number of steps before this command; None where it resumed nothing.
        noise: The noise of gradients; None where none was recorded.
        learning: What the run says of whether it learns; nothing where it shows a step.
        overview: Whether a terminal shows the trends, or the first lines of each table of the step, on one screen.
        checked: The rules and words that make the command fail and are errors as annotations.
        in_order: Whether rows are in the order of the step, and not sorted.
        dump: The command that dumps the model of the run; "" where there is none.
    """

    command: str
    path: str
    steps: Mapping[str, np.ndarray]
    losses: Mapping[str, np.ndarray]
    taken: int
    alarms: tuple[Alarm, ...]
    shown: tuple[StepRow, ...] = ()
    at: int | None = None
    trends: tuple[TrendRow, ...] = ()
    origins: tuple[Origin, ...] = ()
    resumed_from: int | None = None
    noise: RunNoise | None = None
    learning: Learning = NOTHING_TO_SAY
    overview: bool = False
    checked: frozenset[str] = frozenset()
    in_order: bool = True
    dump: str = ""

    def document(self, screen: Screen) -> Document:
        """Returns the tables, the alarms, and the facts about the run last; one screen begins with these.

        Behind long tables a log ends with what the run came to, and with the commands to go on with.
        """
        if self.overview and screen.width is not None:
            return fitted(
                partial(self._on_one_screen, screen), screen, most=screen.overview_lines, fewest=_FEWEST_TRENDS
            )
        tables = (
            step_tables(self.shown, in_order=self.in_order)
            if self.at is not None
            else (trend_table(self.trends, unicode=screen.unicode, in_order=self.in_order),)
        )
        alarms = (Note(label=each.rule, text=alarm_sentence(each), style=BAD) for each in self.alarms)
        noise = () if self.noise is None else (self.noise.table(),)
        return (
            *tables, *noise, Notes(title=f"Alarms ({len(self.alarms):,})", notes=tuple(alarms)),
            Notes(title="Where it began", notes=origin_notes(self.origins)),
            Notes(notes=(*self._end(), *self._facts(screen))),
        )  # fmt: skip

    @property
    def verdict(self) -> Note:
        """The verdict on the run."""
        return run_verdict(self.alarms, self.learning, recorded=len(self.steps["step"]))

    def annotations(self) -> list[Annotation]:
        """Returns the alarms and what the run says, next to the source lines of their tensors where these are shown."""
        tensors = [row.tensor for row in (*self.shown, *self.trends)]
        found = run_annotations(self.alarms, self.origins, self.learning, tensors=tensors, checked=self.checked)
        nothing = Annotation(level="notice", title="gradscope", message=f"{self.verdict.text} in {self.path}")
        return found or [nothing]

    def rows(self) -> list[dict[str, Json]]:
        """Returns name, family and statistics of each row."""
        return [row.to_json() for row in (*self.shown, *self.trends)]

    def to_json(self) -> dict[str, Json]:
        """Returns the run, its loss and alarms, and the rows."""
        losses, recorded = self.losses["loss"], self.steps["step"]
        ends = {"first": float(losses[0]), "last": float(losses[-1])} if losses.size else {}
        found: dict[str, Json] = {
            "schema": SCHEMA,
            "command": self.command,
            "run": self.path,
            "steps": int(recorded[-1]) + 1 if len(recorded) else 0,
            "taken": self.taken,
            "recorded": len(recorded),
            "step": self.at,
            "loss": {name: value for name, value in ends.items() if not math.isnan(value)},
            "alarms": [alarm_json(alarm) for alarm in self.alarms],
            "resumed_from": self.resumed_from,
            "rows": list(self.rows()),
            "noise": None if self.noise is None else self.noise.to_json(),
            "origins": [origin_json(each) for each in self.origins] or None,
            **self.learning.to_json(),
        }
        return {name: fact for name, fact in found.items() if fact is not None}

    def _on_one_screen(self, screen: Screen, most: int) -> Document:
        worst = worst_alarm(self.alarms)
        others = [each for each in self.alarms if each is not worst]
        shown = others[:_MOST_ALARMS]
        notes = [Note(label=each.rule, text=alarm_sentence(each), style=BAD) for each in shown]
        more = len(others) - len(shown)
        notes += [Note(label="", text=f"and {more:,} more (--full lists all)")] if more else []
        noise = "" if self.noise is None else "; with the noise of gradients"
        part = "--step, --tensor" if self.at is None else "--tensor"
        step = "" if self.at is None else f"--step {self.at} "
        text = f"gradscope show {shlex.quote(self.path)} {step}--full{noise}; a part: {part}, --families, --select"
        tables = (
            (folded_trends(self.trends, most, unicode=screen.unicode, sparkline_width=_sparkline_width(screen)),)
            if self.at is None
            else first_lines(step_tables(self.shown, in_order=self.in_order), most)
        )
        return (
            Notes(notes=(self.verdict, *origin_notes(self.origins), *self._facts(screen))),
            Notes(title=f"Other alarms ({len(others):,})", notes=tuple(notes)),
            *tables, Notes(notes=(*self._look(), Note(label="more", text=text))),
        )  # fmt: skip

    def _end(self) -> Sequence[Note]:
        """Returns that there is no alarm, which the list of alarms does not say, or how to look at the worst one."""
        return self._look() if self.alarms else [self.verdict, *self._look()]

    def _look(self) -> Sequence[Note]:
        """Returns the commands that show the step of the worst alarm, and what its rule means.

        Of a loss that has hardly fallen, whose numbers are sound, it has the one that dumps the model.
        """
        worst = worst_alarm(self.alarms)
        if worst is None:
            return [Note(label="look", text=self.dump)] if self.dump and self.learning.level is not None else []
        recorded = worst.step in self.steps["step"] and worst.step != self.at
        command = command_at(worst, self.path) or (
            f"gradscope show {shlex.quote(self.path)} --step {worst.step}" if recorded else ""
        )
        commands = filter(None, [command, f"gradscope explain {worst.rule}"])
        return [Note(label="look", text="; ".join(commands))]

    def _facts(self, screen: Screen) -> Sequence[Note]:
        return run_facts(
            self.path, self.steps, self.losses, taken=self.taken, at=self.at, resumed_from=self.resumed_from,
            learning=self.learning, screen=screen,
        )  # fmt: skip


def step_report(
    command: str, path: str, history: History, step: int | None, *, which: Which | None = None,
    overview: bool = False, resumed_from: int | None = None, checked: frozenset[str] = frozenset(),
) -> RunReport:  # fmt: skip
    """Returns the report of one step of a run.

    Args:
        command: The command that reports.
        path: The run's folder, as the user named it.
        history: Its history.
        step: The step; None for the last recorded one.
        which: Which tensors; None for all.
        overview: Whether a terminal shows it on one screen.
        resumed_from: The number of steps before this command.
        checked: As for `RunReport`.

    Raises:
        UsageError: The step was not recorded, or no row has the column to sort by.
        DumpError: The history is damaged.
    """
    steps = history.steps()
    losses, alarms = history.losses(), history.alarms()
    learns = learning(history, steps, losses) if step is None else NOTHING_TO_SAY
    if step is None and len(steps["step"]):
        step = int(steps["step"][-1])
    if step is None:
        raise UsageError("no step was recorded yet")
    if step not in steps["step"]:
        raise not_recorded(history, step)
    found, chosen = history.stats_at(step), chosen_tensors(history, which)
    sort = None if which is None else which.sort
    rows = tuple(StepRow(tensor=tensor, stats=found[at]) for at, tensor in chosen.items() if at in found)
    return RunReport(
        command=command, path=path, steps=steps, losses=losses, taken=steps_taken(history, losses["step"], alarms),
        alarms=alarms,
        shown=sorted_rows(rows, sort), at=step, origins=alarm_origins(history, alarms), resumed_from=resumed_from,
        noise=run_noise(history, chosen, step), learning=learns, overview=overview, checked=checked,
        in_order=sort is None, dump=dump_command(history, path),
    )  # fmt: skip


def trends_report(
    path: str, history: History, *, command: str = "show", which: Which | None = None, overview: bool = False,
    resumed_from: int | None = None, checked: frozenset[str] = frozenset(),
) -> RunReport:  # fmt: skip
    """Returns the report of the trends of a run.

    Args:
        path: The run's folder, as the user named it.
        history: Its history.
        command: The command that reports.
        which: Which tensors; None for all.
        overview: Whether a terminal shows them on one screen.
        resumed_from: The number of steps before this command.
        checked: As for `RunReport`.

    Raises:
        UsageError: No row has the column to sort by.
        DumpError: The history is damaged.
    """
    found, chosen = history.columns(("l2", "rms", "ratio", "nan", "inf")), chosen_tensors(history, which)
    rows = tuple(
        TrendRow(
            tensor=tensor,
            column=column,
            trend=Trend.of(found[at]["step"], found[at][column], found[at]["nan"] + found[at]["inf"]),
        )
        for at, tensor in chosen.items()
        if at in found
        for column in [_trend_column(tensor.family, found[at])]
    )
    steps, losses, alarms = history.steps(), history.losses(), history.alarms()
    sort = None if which is None else which.sort
    return RunReport(
        command=command, path=path, steps=steps, losses=losses,
        taken=steps_taken(history, losses["step"], alarms), alarms=alarms,
        trends=sorted_rows(rows, sort), origins=alarm_origins(history, alarms), resumed_from=resumed_from,
        noise=run_noise(history, chosen), learning=learning(history, steps, losses), overview=overview,
        checked=checked, in_order=sort is None, dump=dump_command(history, path),
    )  # fmt: skip


def _sparkline_width(screen: Screen) -> int:
    return _NARROW_SPARKLINE if screen.width is not None and screen.width < _WIDE else SPARKLINE_WIDTH


def _trend_column(family: str, stats: Mapping[str, np.ndarray]) -> str:
    column = _TREND_COLUMN.get(family, "l2")
    return "l2" if np.isnan(stats[column]).all() else column
