"""The report of a dump shows its rows, the findings about them, and the facts about the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.manifest.operation_facts import Origin
from gradscope.dump.record import Json
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.screen import Screen, style_of_words
from gradscope.presentation.render.structured import JsonObject, MadeRows
from gradscope.presentation.reports.dump_overview import (
    OverviewFacts,
    dump_blocks,
    overview_document,
    verdict_note,
)
from gradscope.presentation.reports.origins import (
    OF_ORIGINS,
    REPAIR,
    origin_annotation,
    origin_json,
    origin_notes,
    origin_sentence,
)
from gradscope.presentation.tables.dump_rows import Row, rows_of
from gradscope.presentation.tables.facts import Doubt, doubts, facts, facts_json
from gradscope.presentation.tables.folding import folded
from gradscope.presentation.tables.query import Query
from gradscope.presentation.tables.sections import sections
from gradscope.presentation.tables.table import Table
from gradscope.stats import RULES, Finding, is_thrown_away

#: Version of the JSON: it increases when a key changes its meaning or is removed.
SCHEMA: Final = 1
#: The number of findings of one rule that a terminal shows.
_FINDINGS_PER_RULE: Final = 10
#: The end of a sentence on an origin that harms nothing.
_THROWN_AWAY: Final = "it reaches neither the loss nor the gradient of a parameter"


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
        overview: Whether a terminal shows an overview and not the tables.
        checked: The rules whose findings, and words of doubts, make the command fail and are errors as annotations.
        thrown_away: Whether what is not finite reaches neither the loss nor a gradient that is requested.
        whole: Whether no row is left out, so that findings are those of the dump.
        missing: Sentences about missing tensors, where these make the command fail.
    """

    command: str
    path: str
    manifest: Manifest
    selected: tuple[Row, ...]
    findings: tuple[Finding, ...]
    in_order: bool
    fold: bool
    overview: bool
    checked: frozenset[str] = frozenset()
    thrown_away: bool = False
    whole: bool = False
    missing: tuple[str, ...] = ()

    def document(self, screen: Screen) -> Document:
        """Returns the tables, the findings, and the facts about the run last; or an overview of these.

        Behind long tables a log ends with what was found, and with what to do about it.
        """
        if self.overview and screen.width is not None and self.selected:
            return overview_document(self.overview_facts(), screen)
        tables = self.tables(screen)
        nothing = Notes(notes=() if tables else (Note(label="tensors", text="none"),))
        about_run = (Note(label=label, text=text) for label, text in facts(self.path, self.manifest))
        origins = Notes(title="Where it began", notes=self._origin_notes(self.manifest.origins))
        return (*tables, nothing, _findings(self.findings), origins, Notes(notes=(*self._end(), *about_run)))

    def overview_facts(self) -> OverviewFacts:
        """Returns what an overview shows: findings as notes in their order, origins, facts, numbers by block."""
        return OverviewFacts(
            findings=tuple(map(_finding_note, self.findings)),
            origins=self._where_it_began(),
            facts=dict(facts(self.path, self.manifest)),
            overview=dump_blocks(self.selected, self.manifest.layers, self.rules_by_key()),
            path=self.path,
        )

    def _end(self) -> Sequence[Note]:
        """Returns the verdict on a whole dump, as an overview begins with, and what to do about the worst."""
        says = self.whole and bool(self.findings or not self.manifest.origins)
        found = tuple(map(_finding_note, self.findings))
        verdict = [verdict_note(found, dict(facts(self.path, self.manifest)))] if says else []
        if not self.findings:
            return verdict
        explain = Note(label="explain", text=f"gradscope explain {self.findings[0].rule}")
        return [*verdict, *self._remedy(), explain]

    def _remedy(self) -> Sequence[Note]:
        """Returns what to do about the worst finding, where no origin says so."""
        if not self.findings or any(each.repair for each in self.manifest.origins):
            return []
        rule = self.findings[0].rule
        remedy = self.findings[0].repair or next((each.remedy for each in RULES if each.name == rule), "")
        text = f"{remedy[:1].lower()}{remedy[1:]}".removesuffix(".")
        return [Note(label=REPAIR, text=text, style=style_of_words(rule))] if text else []

    def _where_it_began(self) -> tuple[Note, ...]:
        """Returns what the verdict does not say: where NaNs and infinities began, and the repair."""
        worst = self.findings[0] if self.findings else None
        notes = self._origin_notes(
            [
                replace(each, why="") if worst is not None and worst.why.startswith(each.why) else each
                for each in self.manifest.origins
            ]
        )
        return (*notes, *self._remedy())

    def _origin_notes(self, origins: Sequence[Origin]) -> tuple[Note, ...]:
        """Returns notes on origins: of what is thrown away, that it is, without a repair of what harms nothing."""
        if not self.thrown_away:
            return origin_notes(origins)
        return tuple(Note(label="note", text=f"{origin_sentence(each)}; {_THROWN_AWAY}") for each in origins)

    def rules_by_key(self) -> dict[str, list[str]]:
        """Returns the rules that found something in a tensor, by its key, the worst first."""
        rules: dict[str, list[str]] = {}
        for finding in self.findings:
            rules.setdefault(_key(finding), []).append(finding.rule)
        return rules

    def tables(self, screen: Screen) -> tuple[Table, ...]:
        """Returns one table per family of values."""
        tables = sections(self.selected, self.rules_by_key(), in_order=self.in_order)
        if not self.fold or not self.in_order or screen.width is None:
            return tables
        iterated = {row.key for row in self.selected if "iteration" in row.facts}
        return tuple(folded(table, iterated) for table in tables)

    def annotations(self) -> list[Annotation]:
        """Returns the findings and origins next to their source lines, or that nothing looks wrong."""
        began = list(map(self._origin_annotation, self.manifest.origins))
        reasons = tuple(origin.why for origin in self.manifest.origins if origin.why)
        found = [
            Annotation(
                level="warning" if finding.failing(self.checked) is None else "error",
                title=f"gradscope: {finding.rule}",
                message=f"{_key(finding)} {finding.why}",
                source=finding.source,
            )
            for finding in self.findings
            if not (reasons and finding.why.startswith(reasons))
        ]
        is_fine = not found and (self.thrown_away or not began)
        told = [self._doubt_annotation(each) for each in doubts(self.manifest) if is_fine or each.word in self.checked]
        verdict = verdict_note((), dict(facts(self.path, self.manifest))).text
        nothing = Annotation(level="notice", title="gradscope", message=f"{self.path}: {verdict}")
        missing = [Annotation(level="error", title="gradscope", message=each) for each in self.missing]
        return [*began, *found, *told, *missing, *([] if told or missing or not is_fine else [nothing])]

    def _doubt_annotation(self, doubt: Doubt) -> Annotation:
        level = "error" if doubt.word in self.checked else "notice"
        return Annotation(level=level, title=f"gradscope: {doubt.word}", message=doubt.why, source=doubt.source)

    def _origin_annotation(self, origin: Origin) -> Annotation:
        if self.thrown_away:
            return origin_annotation(origin, "notice", _THROWN_AWAY)
        return origin_annotation(origin, "error" if self.checked & OF_ORIGINS else "warning", origin.repair)

    def rows(self) -> Sequence[Mapping[str, Json]]:
        """Returns name, family and values of each row."""
        return MadeRows(Row.to_json, self.selected)

    def to_json(self) -> JsonObject:
        """Returns rows, findings and facts."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            **facts_json(self.path, self.manifest),
            "rows": self.rows(),
            "findings": [_finding_json(finding) for finding in self.findings],
            **({"origins": list(map(self._origin_json, self.manifest.origins))} if self.manifest.origins else {}),
        }

    def _origin_json(self, origin: Origin) -> dict[str, Json]:
        if not self.thrown_away:
            return origin_json(origin)
        return {**origin_json(replace(origin, repair="")), "thrown_away": True}


def dump_report(
    command: str,
    path: str,
    manifest: Manifest,
    findings: Sequence[Finding],
    *,
    query: Query | None = None,
    fold: bool = True,
    overview: bool = False,
    checked: frozenset[str] = frozenset(),
    missing: Iterable[str] = (),
) -> DumpReport:
    """Returns the report of a dump, with the rows that a query selects.

    Args:
        command: The command that reports, `dump` or `show`.
        path: The dump's file, as the user named it.
        manifest: Its manifest.
        findings: The findings that `gradscope.stats.find` returned for it.
        query: The query; None selects all rows in execution order.
        fold: Whether on a terminal the iterations of a loop share a line.
        overview: Whether a terminal shows an overview and not the tables.
        checked: The rules whose findings, and the words of doubts, that make the command fail.
        missing: Sentences about missing tensors, where these make the command fail.

    Returns:
        The report.

    Raises:
        UsageError: The query cannot be answered.
        DumpError: A statistic in the manifest is not a number.
    """
    query = Query() if query is None else query
    every = rows_of(manifest)
    rows = query(every)
    keys = {key for row in rows for key in (row.key, row.own_key)} if findings else set[str]()
    return DumpReport(
        command=command,
        path=path,
        manifest=manifest,
        selected=rows,
        findings=tuple(each for each in findings if _key(each) in keys),
        in_order=query.sort is None,
        fold=fold,
        overview=overview,
        checked=checked,
        thrown_away=bool(manifest.origins) and is_thrown_away(manifest),
        whole=0 < len(every) == len(rows),
        missing=tuple(missing),
    )


def _findings(findings: Sequence[Finding]) -> Notes:
    notes = tuple(map(_finding_note, findings))
    return Notes(title=f"Findings ({len(findings):,})", notes=notes, at_most=_FINDINGS_PER_RULE)


def _finding_note(finding: Finding) -> Note:
    return Note(label=finding.rule, text=finding.statement, style=style_of_words(finding.rule))


def _finding_json(finding: Finding) -> dict[str, Json]:
    known: dict[str, Json] = {} if finding.source is None else {"source": finding.source}
    known |= {"iteration": list(finding.iteration)} if finding.iteration else {}
    named = {"rule": finding.rule, "name": finding.name, "family": finding.family, "why": finding.why}
    return {**named, **known, "tensors": finding.tensors}


def _key(finding: Finding) -> str:
    return naming.key_of(finding.family, finding.name)
