"""The report of a series of comparisons has one line for each, then the first that differs in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradscope.comparison import Comparison
from gradscope.comparison.result import Series, SeriesMember
from gradscope.dump.record import Json
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.for_ci.junit import Case, Suite
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.comparing.comparison import VERDICT_STYLES, ComparisonReport
from gradscope.presentation.reports.comparing.run_notes import verdict_annotation
from gradscope.presentation.reports.comparing.tensor_cases import suite_of
from gradscope.presentation.tables.table import Column, Line, Table

_COLUMNS: Final = (
    Column(heading="name", kind="name"),
    Column(heading="verdict", kind="words"),
    Column(heading="largest rel_l2", kind="number"),
    Column(heading="forward", kind="text", priority=2),
    Column(heading="backward", kind="text", priority=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesReport:
    """A `SeriesReport` presents a series of comparisons.

    Attributes:
        series: The series.
        everything: Whether the document has the rows that are the same, too.
        worst_first: Whether tables begin with the row furthest from passing.
        overview: Whether a terminal shows the first and the worst rows and not all of them.
        verbose: Whether hashes in which the runs differ are shown.
    """

    series: Series
    everything: bool = False
    worst_first: bool = False
    overview: bool = False
    verbose: bool = False

    def document(self, screen: Screen) -> Document:
        """Returns the verdict, a line for each comparison, and the full report of the first that differs."""
        heading = self.heading()
        first = self.series.first_different
        if first is None:
            return heading
        details = ComparisonReport(
            comparison=first.comparison,
            everything=self.everything,
            worst_first=self.worst_first,
            overview=self.overview,
            verbose=self.verbose,
        ).document(screen)
        return (*heading, Notes(title="The first that differs", notes=(Note(label="name", text=first.name),)), *details)

    def heading(self) -> tuple[Notes, Table]:
        """Returns the verdict, and the table with a line for each comparison."""
        verdict = self.series.verdict
        judged = Notes(notes=(Note(label=verdict, text=self.series.sentence, style=VERDICT_STYLES[verdict]),))
        title = "Steps" if self.series.steps else "Candidates"
        table = Table(
            title=f"{title} ({len(self.series.members):,})",
            columns=_COLUMNS,
            lines=tuple(map(_line, self.series.members)),
            in_order=False,
        )
        return judged, table

    def annotations(self) -> list[Annotation]:
        """Returns the verdict; a comparison knows names and no source lines."""
        return [verdict_annotation(self.series.verdict, self.series.sentence)]

    def suites(self) -> list[Suite]:
        """Returns a suite of tests for each comparison, and one for steps that only one run has."""
        alone = [
            Case(group="step", name=name, ending="failure", why=f"only in the {side}", kind=kind)
            for names, side, kind in (
                (self.series.missing, "reference", "missing"),
                (self.series.extra, "candidate", "extra"),
            )
            for name in names
        ]
        members = [suite_of(member.comparison, member.name) for member in self.series.members]
        own = Suite(name="series", sentence=self.series.sentence, verdict=self.series.verdict, cases=alone)
        return [*members, *([own] if alone or not members else [])]

    def rows(self) -> list[dict[str, Json]]:
        """Returns the rows of every comparison, each with the name of its comparison."""
        return [
            {"comparison": member.name, **row.to_json()}
            for member in self.series.members
            for row in member.comparison.rows
        ]

    def to_json(self) -> dict[str, Json]:
        """Returns the series as JSON."""
        return self.series.to_json()


def _line(member: SeriesMember) -> Line:
    comparison, first = member.comparison, member.comparison.first_divergence
    names = (row.name if row is not None else None for row in (first.forward, first.backward))
    return Line(cells=(member.name, (comparison.verdict,), _worst(comparison), *names), keys=())


def _worst(comparison: Comparison) -> float | None:
    return max((row.needed for row in comparison.rows if row.needed is not None), default=None)
