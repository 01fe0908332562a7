"""The report of one dump: its rows, the findings about them, and the facts about the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.json_text import from_float
from gradscope.dump.manifest.manifest import Manifest, Origin
from gradscope.dump.record import Json
from gradscope.report.render.document import Document, Note, Notes
from gradscope.report.render.screen import Screen, style_of_words
from gradscope.report.tables.dump_rows import Row, rows_of
from gradscope.report.tables.facts import facts, facts_json
from gradscope.report.tables.folding import folded
from gradscope.report.tables.query import Query
from gradscope.report.tables.sections import sections
from gradscope.report.tables.table import Table
from gradscope.stats import Finding

#: Version of the JSON: it increases when a key changes its meaning or is removed.
SCHEMA: Final = 1
#: The number of findings of one rule that a terminal shows.
_FINDINGS_PER_RULE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpReport:
    """A `DumpReport` presents a dump.

    Attributes:
        command: The command that reports, `dump` or `show`.
        path: The dump's file, as the user named it.
        manifest: Its manifest.
        selected: The selected rows, in the selected order.
        findings: The findings about those rows.
        in_order: Whether the rows are in execution order.
        fold: Whether on a terminal the iterations of a loop share a line.
    """

    command: str
    path: str
    manifest: Manifest
    selected: tuple[Row, ...]
    findings: tuple[Finding, ...]
    in_order: bool
    fold: bool

    def document(self, screen: Screen) -> Document:
        """Returns the tables, the findings, and the facts about the run last."""
        tables = self.tables(screen)
        nothing = Notes(notes=() if tables else (Note(label="tensors", text="none"),))
        about_run = (Note(label=label, text=text) for label, text in facts(self.path, self.manifest))
        origins = origin_notes(self.manifest.origins)
        return (*tables, nothing, _findings(self.findings), origins, Notes(notes=tuple(about_run)))

    def tables(self, screen: Screen) -> tuple[Table, ...]:
        """Returns one table per family of values."""
        rules_by_key: dict[str, list[str]] = {}
        for finding in self.findings:
            rules_by_key.setdefault(_key(finding), []).append(finding.rule)
        tables = sections(self.selected, rules_by_key, in_order=self.in_order)
        if not self.fold or not self.in_order or screen.width is None:
            return tables
        iterated = {row.key for row in self.selected if "iteration" in row.values}
        return tuple(folded(table, iterated) for table in tables)

    def rows(self) -> list[dict[str, Json]]:
        """Returns name, family and values of each row."""
        return [row.to_json() for row in self.selected]

    def to_json(self) -> dict[str, Json]:
        """Returns rows, findings and facts."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            **facts_json(self.path, self.manifest),
            "rows": list(self.rows()),
            "findings": [_finding_json(finding) for finding in self.findings],
            **({"origins": [origin_json(each) for each in self.manifest.origins]} if self.manifest.origins else {}),
        }


def dump_report(
    command: str,
    path: str,
    manifest: Manifest,
    findings: Sequence[Finding],
    *,
    query: Query | None = None,
    fold: bool = True,
) -> DumpReport:
    """Returns the report of a dump, with the rows that a query selects.

    Args:
        command: The command that reports, `dump` or `show`.
        path: The dump's file, as the user named it.
        manifest: Its manifest.
        findings: The findings that `gradscope.stats.find` returned for it.
        query: The query; None selects all rows in execution order.
        fold: Whether on a terminal the iterations of a loop share a line.

    Returns:
        The report.

    Raises:
        UsageError: The query cannot be answered.
        DumpError: A statistic in the manifest is not a number.
    """
    query = Query() if query is None else query
    rows = query(rows_of(manifest))
    keys = {row.key for row in rows} | {row.own_key for row in rows}
    return DumpReport(
        command=command,
        path=path,
        manifest=manifest,
        selected=rows,
        findings=tuple(each for each in findings if _key(each) in keys),
        in_order=query.sort is None,
        fold=fold,
    )


def _findings(findings: Sequence[Finding]) -> Notes:
    notes = (Note(label=each.rule, text=_sentence(each), style=style_of_words(each.rule)) for each in findings)
    return Notes(title=f"Findings ({len(findings):,})", notes=tuple(notes), at_most=_FINDINGS_PER_RULE)


def origin_notes(origins: Sequence[Origin]) -> Notes:
    """Returns notes on where NaNs and infinities began, and how to repair them."""
    notes = [
        Note(label=label, text=text, style=style_of_words("nonfinite"))
        for origin in origins
        for label, text in (("origin", f"{_origin_location(origin)} {origin.why}"), ("repair", origin.repair))
        if text
    ]
    return Notes(title="Where it began", notes=tuple(notes))


def _origin_location(origin: Origin) -> str:
    return naming.printable(origin.name) + (f" ({origin.source})" if origin.source else "")


def origin_json(origin: Origin) -> dict[str, Json]:
    """Returns an origin as the command line's JSON has it."""
    found: dict[str, Json] = {
        "direction": origin.direction,
        "name": origin.name,
        "primitive": origin.primitive,
        "source": origin.source,
        "iteration": list(origin.iteration) or None,
        "index": list(origin.index) or None,
        "operands": [from_float(operand) for operand in origin.operands] or None,
        "why": origin.why,
        "repair": origin.repair or None,
    }
    return {name: fact for name, fact in found.items() if fact is not None}


def _sentence(finding: Finding) -> str:
    location = f" ({finding.source})" if finding.source else ""
    return f"{_key(finding)} {finding.why}{location}"


def _finding_json(finding: Finding) -> dict[str, Json]:
    facts: dict[str, Json] = {"rule": finding.rule, "name": finding.name, "family": finding.family, "why": finding.why}
    if finding.source is not None:
        facts["source"] = finding.source
    if finding.iteration:
        facts["iteration"] = list(finding.iteration)
    return facts


def _key(finding: Finding) -> str:
    return naming.key_of(finding.family, finding.name)
