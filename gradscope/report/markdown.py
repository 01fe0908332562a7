"""Markdown: tables fit for a pull request.

Names and other words stand in code spans: a hosting site turns `embed#2` into a link to an issue and `<b>` into markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gradscope.report.cells import RIGHT, column_texts
from gradscope.report.screen import Screen
from gradscope.report.table import Table

_SCREEN: Final = Screen()


def to_markdown(table: Table) -> str:
    """A table in GitHub's Markdown, with its title as a heading and its remarks below.

    Args:
        table: The table.

    Returns:
        Lines, each with its line feed.
    """
    shown = table.without_empty_columns()
    columns = [_cells(shown, position) for position in range(len(shown.columns))]
    lines = [
        f"### {shown.title}",
        "",
        _line([column.full_heading for column in shown.columns]),
        _line(["---:" if column.kind in RIGHT else "---" for column in shown.columns]),
        *map(_line, zip(*columns, strict=True)),
        *(text for remark in shown.remarks for text in ("", code_free(remark))),
    ]
    return "".join(f"{line}\n" for line in lines)


def code_span(text: str) -> str:
    """The text in a code span, whatever backticks it has; pipes escaped, as even code spans in a table need."""
    if not text:
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{blank}{text}{blank}{fence}".replace("|", r"\|")


def code_free(text: str) -> str:
    """The text outside of a code span: characters that Markdown would act on escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", text)


def _cells(table: Table, position: int) -> list[str]:
    column = table.columns[position]
    texts = [text.strip() for text in column_texts(column, table.cells(position), _SCREEN)]
    return texts if column.kind in RIGHT else [code_span(text) for text in texts]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
