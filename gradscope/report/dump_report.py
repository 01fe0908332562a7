"""The report of one dump: its rows, findings and facts, and the tables made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.text import Text

from gradscope import naming
from gradscope.dump.manifest import Manifest
from gradscope.report.facts import facts
from gradscope.report.findings import lay_out_findings
from gradscope.report.folding import folded
from gradscope.report.layout import lay_out
from gradscope.report.query import Query
from gradscope.report.rows import Row, rows_of
from gradscope.report.screen import Screen
from gradscope.report.sections import sections
from gradscope.report.styles import DIM
from gradscope.report.table import Table
from gradscope.stats import Finding

#: Where the facts below the tables begin, behind their labels.
_INDENT: Final = " " * 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpReport:
    """What is reported of a dump, in whatever format.

    Attributes:
        path: The dump's file, as the user named it.
        manifest: Its manifest.
        rows: The rows asked for, in the order asked for.
        findings: The findings about those rows.
        in_order: Whether the rows stand in execution order.
    """

    path: str
    manifest: Manifest
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    in_order: bool


def dump_report(path: str, manifest: Manifest, findings: tuple[Finding, ...], query: Query | None = None) -> DumpReport:
    """What a dump has to say about the rows that a query asks for.

    Args:
        path: The dump's file, as the user named it.
        manifest: Its manifest.
        findings: What `gradscope.stats.find` found in it.
        query: Which rows; all in execution order where None.

    Returns:
        The report.

    Raises:
        UsageError: The query cannot be answered.
        DumpError: A statistic in the manifest is not a number.
    """
    asked = Query() if query is None else query
    rows = asked(rows_of(manifest))
    keys = {row.own_key for row in rows} | {row.key for row in rows}
    shown = tuple(each for each in findings if naming.key_of(each.family, each.name) in keys)
    return DumpReport(path=path, manifest=manifest, rows=rows, findings=shown, in_order=asked.sort is None)


def dump_tables(report: DumpReport, *, fold: bool = False) -> tuple[Table, ...]:
    """The tables of a report, one per family of values.

    Args:
        report: The report.
        fold: Whether the iterations of a loop share a line; only in execution order.
    """
    notes: dict[str, list[str]] = {}
    for finding in report.findings:
        notes.setdefault(naming.key_of(finding.family, finding.name), []).append(finding.rule)
    tables = sections(report.rows, notes, in_order=report.in_order)
    if not fold or not report.in_order:
        return tables
    iterated = {row.key for row in report.rows if "iteration" in row.values}
    return tuple(folded(table, iterated) for table in tables)


def lay_out_dump(report: DumpReport, screen: Screen, *, fold: bool = True) -> Text:
    """A report as text: tables, findings, and the facts about the run last.

    Args:
        report: The report.
        screen: Where the text goes.
        fold: Whether the iterations of a loop share a line; in a pipe they never do.

    Returns:
        Lines, each with its line feed.
    """
    tables = dump_tables(report, fold=fold and screen.width is not None)
    blocks = [lay_out(table, screen) for table in tables] or [Text("No tensors.\n", DIM)]
    blocks += [lay_out_findings(report.findings, screen), _lay_out_facts(report, screen)]
    return Text("\n").join(block for block in blocks if block)


def _lay_out_facts(report: DumpReport, screen: Screen) -> Text:
    text = Text()
    for label, what in facts(report.path, report.manifest):
        text.append(label.ljust(len(_INDENT)), DIM)
        text.append(screen.wrap(screen.show(what), _INDENT) + "\n")
    return text
