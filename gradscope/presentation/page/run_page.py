"""The page of a training run: curves, layers against steps, and the tables of every recorded step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from gradscope.dump.record import Json
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.history.value_histograms import ValueHistogram
from gradscope.naming import INPUT, SLOT_PREFIX
from gradscope.presentation.page.content.json_values import Keys, rounded
from gradscope.presentation.page.content.packed_series import OCTAVE_PARTS, packed
from gradscope.presentation.page.content.table_content import tables_content
from gradscope.presentation.page.page_parts import Page, PageMaker, PageNotes
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.screen import BAD
from gradscope.presentation.reports.dump_report import origin_notes
from gradscope.presentation.reports.runs.alarm_words import alarm_sentence, run_verdict, worst_alarm
from gradscope.presentation.reports.runs.run_report import RunReport, trends_report
from gradscope.presentation.tables.numbers import count, number
from gradscope.presentation.tables.over_time.run_tables import GROUPS, StepRow, step_tables, trend_table
from gradscope.presentation.tables.table import Table

#: The statistics that are packed, the most important first; `l2` follows from `rms` and the number of elements.
_PACKED: Final = ("rms", "amax", "zeros", "mean", "nan", "inf", "ratio", "cosine", "share")
#: By level of detail, the most recorded steps and the number of statistics.
_STEPS: Final = (256, 128, 64, 64, 24, 0)
_STATISTICS: Final = (9, 9, 9, 3, 1, 0)
#: The most steps of which a page has the histograms of tensors, at the first level of detail.
_HISTOGRAM_STEPS: Final = 8
#: The most steps of the curves of a run.
_MOST_CURVE_STEPS: Final = 5_000
#: The most tensors and alarms that are read without JavaScript.
_MOST_TRENDS: Final = 40
_MOST_ALARMS: Final = 100


def run_page(path: str, history: History) -> PageMaker:
    """Returns the maker of a run's page.

    Args:
        path: The run's folder, as the user named it.
        history: Its history; all that the page needs of it is read now.

    Raises:
        DumpError: The history is damaged.
    """
    report = trends_report(path, history)
    recorded = report.steps["step"]
    series = history.columns(_PACKED)
    columns = {name: {at: (each["step"], each[name]) for at, each in series.items()} for name in _PACKED}
    tensors = {at: row for at, row in history.tensors.items() if at in series}

    with_histograms = history.histogram_steps()
    histogram_steps = _some(with_histograms, _HISTOGRAM_STEPS)
    histograms = [history.histograms_at(step) for step in histogram_steps.tolist()]

    def made(level: int) -> Page:
        keys = Keys()
        steps = _some(recorded, _STEPS[level])
        names = _PACKED[: _STATISTICS[level]]
        planes = {name: _plane(columns[name], tensors, steps) for name in names}
        shown = [name for name in names if not np.isnan(planes[name]).all()]
        left_out = [f"statistics of {count(len(recorded) - len(steps))} of {count(len(recorded))} recorded steps"]
        left_out = left_out if len(steps) < len(recorded) else []
        left_out += [f"the statistics {', '.join(_PACKED[len(names) :])}"] if len(names) < len(_PACKED) else []
        shown_histograms = 0 if level else len(histograms)
        if shown_histograms < len(with_histograms):
            fewer = len(with_histograms) - shown_histograms
            left_out.append(f"the histograms of {count(fewer)} of {count(len(with_histograms))} steps")
        run: dict[str, Json] = {
            "steps": steps.tolist(),
            "curves": _curves(report.steps),
            "keys": [keys.number(tensor.key) for tensor in tensors.values()],
            "sizes": [None if tensor.shape is None else math.prod(tensor.shape) for tensor in tensors.values()],
            "packed": list(shown),
            "octave_parts": OCTAVE_PARTS,
            "alarms": [
                {"step": each.step, "rule": each.rule, "why": each.why,
                 "key": None if each.key is None else keys.number(each.key)}
                for each in report.alarms
            ],
            "groups": _families_by_group(),
            "histograms": [
                {"step": step, "octaves": [_octaves(found.get(at)) for at in tensors]}
                for step, found in zip(histogram_steps.tolist()[:shown_histograms], histograms, strict=False)
            ],
        }  # fmt: skip
        tables = step_tables(_rows_at_the_end(tensors, columns))
        return Page(
            kind="run",
            title=path,
            summary=_summary(report, path),
            content={
                "keys": keys.to_json(),
                "sets": [{"name": path, "tables": tables_content(tables, keys)}],
                "depth": [],
                "run": run,
            },
            packed=b"".join(packed(planes[name]) for name in shown),
            left_out=tuple(left_out),
        )

    return made


#: By tensor, the steps at which a statistic is known, and its values.
_Column = Mapping[int, tuple[np.ndarray, np.ndarray]]


def _some(recorded: np.ndarray, most: int) -> np.ndarray:
    """Returns at most so many of the recorded steps, evenly spread, the last among them."""
    if len(recorded) <= most:
        return recorded
    return recorded[np.linspace(0, len(recorded) - 1, most).round().astype(int)] if most else recorded[:0]


def _plane(column: _Column, tensors: Mapping[int, TensorRow], steps: np.ndarray) -> np.ndarray:
    """Returns a statistic of all tensors at some steps, NaN where it was not recorded."""
    plane = np.full((len(tensors), len(steps)), np.nan)
    for row, at in enumerate(tensors):
        if at in column and len(steps):
            known, values = column[at]
            found = np.searchsorted(known, steps).clip(max=len(known) - 1)
            plane[row] = np.where(known[found] == steps, values[found], np.nan)
    return plane


def _octaves(histogram: ValueHistogram | None) -> Json:
    """Returns the exponent of the first octave, and the counts from there; None without elements that are not zero."""
    octaves = [] if histogram is None else histogram.octaves()
    return [octaves[0][0], *(number for _, number in octaves)] if octaves else None


def _curves(steps: Mapping[str, np.ndarray]) -> Json:
    """Returns the columns of the steps that have values, without those that only count."""
    kept = np.isin(steps["step"], _some(steps["step"], _MOST_CURVE_STEPS))
    shown = [name for name in steps if name == "loss" or name.endswith("_norm") or name == "learning_rate"]
    columns: list[Json] = [
        {
            "name": name,
            "values": [None if math.isnan(value) else rounded(value) for value in steps[name][kept].tolist()],
        }
        for name in shown
        if not np.isnan(steps[name]).all()
    ]
    return {"steps": steps["step"][kept].tolist(), "columns": columns}


def _rows_at_the_end(tensors: Mapping[int, TensorRow], columns: Mapping[str, _Column]) -> list[StepRow]:
    """Returns the rows whose tables give the page's tables their lines and columns: the last of every statistic.

    A column that is left out where all of its cells are zero has to be there, if they are not at any other step.
    """
    rows: list[StepRow] = []
    for at, tensor in tensors.items():
        stats = {name: _largest(column[at][1]) for name, column in columns.items() if at in column}
        known = {name: value for name, value in stats.items() if not math.isnan(value)}
        rows.append(StepRow(tensor=tensor, stats={**known, **({"l2": known["rms"]} if "rms" in known else {})}))
    return rows


def _largest(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[np.abs(known).argmax()]) if known.size else math.nan


def _families_by_group() -> dict[str, Json]:
    groups: dict[str, list[Json]] = {}
    for family, group in GROUPS.items():
        groups.setdefault(group, []).append(family)
    return {**groups, "": [INPUT, SLOT_PREFIX]}


def _summary(report: RunReport, path: str) -> tuple[PageNotes | Table, ...]:
    alarms = report.alarms
    losses = report.steps["loss"][~np.isnan(report.steps["loss"])].tolist()
    facts = [Note(label="loss", text=f"{number(losses[0])} to {number(losses[-1])}")] if losses else []
    facts += [
        Note(label="steps", text=f"{count(report.taken)} taken, {count(len(report.steps['step']))} recorded"),
        Note(label="run", text=path),
    ]
    shown = alarms[:_MOST_ALARMS]
    notes = [Note(label=each.rule, text=alarm_sentence(each), style=BAD) for each in shown]
    more = len(alarms) - len(shown)
    notes += [Note(label="", text=f"and {more:,} more")] if more else []
    return (
        PageNotes(
            notes=[run_verdict(alarms), *origin_notes(report.origins), *facts],
            keys=[worst.key or ""] if (worst := worst_alarm(alarms)) else [],
        ),
        PageNotes(title=f"Alarms ({len(alarms):,})", notes=notes, keys=[each.key or "" for each in shown]),
        steepest_trends(report, _MOST_TRENDS),
    )


def steepest_trends(report: RunReport, most: int) -> Table:
    """Returns the table of the steepest trends of a run, at most so many."""
    ordered = sorted(report.trends, key=lambda row: -abs(row.trend.slope or 0.0))
    table = trend_table(ordered[:most], unicode=True)
    title = f"The steepest trends ({len(table.lines):,} of {len(ordered):,})"
    return Table(title=title, columns=table.columns, lines=table.lines, in_order=False, notes=table.notes)
