"""A notebook shows a dump or a run as its verdict, a small chart, and the head of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Manifest
from gradscope.naming.small_chart import SmallChart
from gradscope.presentation.page.content.depth_content import DIRECTIONS, layers_along_depth
from gradscope.presentation.page.page_parts import PageNotes
from gradscope.presentation.page.run_page import changed_most
from gradscope.presentation.page.static_html import summary_html
from gradscope.presentation.render.document import Note
from gradscope.presentation.reports.dump_overview import verdict_note
from gradscope.presentation.reports.dump_report import dump_report
from gradscope.presentation.reports.runs.run_facts import learning_notes
from gradscope.presentation.reports.runs.run_report import RunReport
from gradscope.presentation.tables.table import Line, Table
from gradscope.stats import Finding

#: Lines of a table.
_LINES: Final = 12
_LABELS: Final = {"forward": "activation", "backward": "gradient"}


def dump_html(line: str, manifest: Manifest, findings: Sequence[Finding]) -> str:
    """Returns a dump as HTML of less than 60 kB: verdict, rms along depth, and the numbers block by block.

    Args:
        line: The dump in one line.
        manifest: Its manifest.
        findings: The findings that `gradscope.stats.find` returned for it.

    Raises:
        DumpError: A statistic in the manifest is not a number.
    """
    report = dump_report("show", "", manifest, findings)
    facts = report.overview_facts()
    names = layers_along_depth(manifest)
    lines = {_LABELS[direction]: _rms(manifest, family, names) for family, direction in DIRECTIONS.items()}
    chart = SmallChart(title="rms along depth", lines=lines)
    notes = [verdict_note(facts.findings, facts.facts), Note(label="dump", text=line)]
    return _put_together(notes, chart, facts.overview.table(_LINES))


def run_html(line: str, report: RunReport) -> str:
    """Returns a run as HTML of less than 60 kB: its alarms, its loss, and the trends that changed most.

    Args:
        line: The run in one line.
        report: The report of its trends.
    """
    recorded, losses = report.steps, report.losses
    at = np.union1d(recorded["step"], losses["step"])
    lines = {"loss": _at(at, losses, "loss")} | {name: _at(at, recorded, name) for name in ("grad_norm", "update_norm")}
    chart = SmallChart(title="over steps", lines=lines)
    notes = [report.verdict, *learning_notes(report.learning)]
    return _put_together([*notes, Note(label="run", text=line)], chart, changed_most(report, _LINES))


def _rms(manifest: Manifest, family: str, names: Sequence[str]) -> list[float | None]:
    found = {entry.name: as_float(entry.stats["rms"]) for entry in manifest.entries
             if entry.family == family and "rms" in entry.stats}  # fmt: skip
    return [found.get(name) for name in names]


def _at(steps: np.ndarray, known: Mapping[str, np.ndarray], name: str) -> list[float | None]:
    """Returns a column at some steps; None where it is not known."""
    found = dict(zip(known["step"].tolist(), known[name].tolist(), strict=True))
    values = (found.get(step) for step in steps.tolist())
    return [None if value is None or np.isnan(value) else value for value in values]


def _put_together(notes: Sequence[Note], chart: SmallChart, table: Table) -> str:
    # In a notebook there is nothing that a link to a tensor could lead to.
    lines = tuple(Line(cells=line.cells, keys=()) for line in table.lines)
    return (
        f"<div>{summary_html([PageNotes(notes=notes)])}{chart.svg()}{summary_html([replace(table, lines=lines)])}</div>"
    )
