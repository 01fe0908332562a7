"""Rendering: one report, four formats, the same rows in each.

Text is for people at a terminal and for pipes, Markdown for pull requests, JSON and CSV for programs. All functions
return; printing is for `cli`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.text import Text

from gradscope.dump.record import Json
from gradscope.report.render.document import Document, lay_out_document
from gradscope.report.render.markdown import document_markdown
from gradscope.report.render.screen import Screen
from gradscope.report.render.structured import csv_text, indented_json


class Report(Protocol):
    """What a command has to say, before the format is known."""

    def document(self, screen: Screen) -> Document:
        """What people read; on a terminal it may be shorter, and then says so."""
        ...

    def rows(self) -> Sequence[Mapping[str, Json]]:
        """Its rows, each with a name."""
        ...

    def to_json(self) -> dict[str, Json]:
        """All of it, as the command line's JSON has it; NaN and infinities are floats."""
        ...


def to_text(report: Report, screen: Screen) -> Text:
    """A report as text: lines that fit the screen and must not be wrapped again, coloured; `.plain` has no colour."""
    return lay_out_document(report.document(screen), screen)


def to_markdown(report: Report) -> str:
    """A report in GitHub's Markdown."""
    return document_markdown(report.document(Screen()))


def to_json(report: Report) -> str:
    """A report as one JSON object, indented by two spaces, ASCII only, NaN and infinities as strings."""
    return indented_json(report.to_json())


def to_csv(report: Report) -> str:
    """The rows of a report as CSV."""
    return csv_text(report.rows())
