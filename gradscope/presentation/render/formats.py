"""Formats render one report in six ways.

Text is for people at a terminal and for pipes, Markdown is for pull requests, JSON and CSV are for programs. These have
the same rows. Annotations for GitHub are next to source lines, and JUnit's XML has the cases of a comparison. All
functions return; only `cli` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from rich.text import Text

from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.presentation.render.document import Document, lay_out_document
from gradscope.presentation.render.for_ci.github import AnnotatedReport, annotations_text
from gradscope.presentation.render.for_ci.junit import JudgedReport, junit_text
from gradscope.presentation.render.markdown import document_markdown
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.render.structured import JsonObject, csv_text, indented_json


class Report(Protocol):
    """A `Report` is the result of a command before it has a format."""

    def document(self, screen: Screen) -> Document:
        """Returns what people read; on a terminal it may be shorter, and then a note says so."""
        ...

    def rows(self) -> Sequence[Mapping[str, Json]]:
        """Returns the rows, each with a name."""
        ...

    def to_json(self) -> JsonObject:
        """Returns everything, as the command line's JSON has it; NaN and infinities are floats."""
        ...


def to_text(report: Report, screen: Screen) -> Text:
    """Returns a report as coloured text that fits the screen and must not be wrapped again; `.plain` has no colour."""
    return lay_out_document(report.document(screen), screen)


def to_markdown(report: Report) -> str:
    """Returns a report in GitHub's Markdown."""
    return document_markdown(report.document(Screen()))


def to_github(report: Report, located: Callable[[str], str | None]) -> str:
    """Returns what a report says as annotations of source lines, for GitHub Actions.

    Args:
        report: The report.
        located: Returns the path of a file in the repository from its name; None where it is not known.

    Raises:
        UsageError: The report says nothing about source lines.
    """
    if not isinstance(report, AnnotatedReport):
        raise UsageError("there is nothing to annotate in this result", hint="use --format markdown")
    return annotations_text(report.annotations(), located)


def to_junit(report: Report) -> str:
    """Returns a report as JUnit's XML.

    Raises:
        UsageError: The report is of no comparison.
    """
    if not isinstance(report, JudgedReport):
        raise UsageError("there is nothing tested in this result", hint="use --json")
    return junit_text(report.suites())


def json_parts(report: Report) -> Iterator[str]:
    """Yields the parts of what `to_json` returns, so that a long one need not be in memory at once."""
    return indented_json(report.to_json())


def to_json(report: Report) -> str:
    """Returns a report as one JSON object, indented by two spaces, in ASCII, with NaN and infinities as strings."""
    return "".join(json_parts(report))


def csv_parts(report: Report) -> Iterator[str]:
    """Yields the parts of what `to_csv` returns."""
    return csv_text(report.rows())


def to_csv(report: Report) -> str:
    """Returns the rows of a report as CSV."""
    return "".join(csv_parts(report))
