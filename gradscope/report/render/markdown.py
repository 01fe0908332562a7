"""Markdown: documents fit for a pull request.

A long table is folded, so that a comment shows its verdict and its short tables, and whoever wants the rest opens it.

Words from a dump stand in code spans or escaped: a hosting site makes a link of `embed#2` and markup of `<b>`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final

from gradscope.report.render.cells import RIGHT, column_texts
from gradscope.report.render.document import Document, Remark, Remarks
from gradscope.report.render.screen import Screen
from gradscope.report.tables.table import Table

_SCREEN: Final = Screen()

#: Lines up to which a table stands open.
_MOST_OPEN: Final = 25


def document_markdown(document: Document) -> str:
    """A document in GitHub's Markdown: tables under headings, remarks as lists.

    Args:
        document: What to show; remarks without a remark are left out.

    Returns:
        Lines, each with its line feed, and an empty one between blocks.
    """
    blocks: list[list[str]] = []
    listed = False
    for each in document:
        lines = _table(each) if isinstance(each, Table) else _remarks(each)
        if not lines:
            continue
        # A list goes on behind an empty line, so that what belongs to no heading would belong to the last one.
        blocks.append(["<!-- -->", "", *lines] if listed and lines[0].startswith("- ") else lines)
        listed = isinstance(each, Remarks)
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in blocks)


def _table(table: Table) -> list[str]:
    shown = table.without_empty_columns()
    columns = [_cells(shown, position) for position in range(len(shown.columns))]
    lines = [
        _line([_escaped(column.full_heading) for column in shown.columns]),
        _line(["---:" if column.kind in RIGHT else "---" for column in shown.columns]),
        *map(_line, zip(*columns, strict=True)),
        *(text for remark in shown.remarks for text in ("", _escaped(remark))),
    ]
    if len(shown.lines) <= _MOST_OPEN:
        return [f"### {_escaped(shown.title)}", "", *lines]
    # Inside of HTML there is Markdown again behind an empty line.
    return ["<details>", f"<summary>{_html(shown.title)}</summary>", "", *lines, "", "</details>"]


def _cells(table: Table, position: int) -> list[str]:
    column = table.columns[position]
    texts = [text.strip() for text in column_texts(column, table.cells(position), _SCREEN)]
    return texts if column.kind in RIGHT else [_code_span(text) for text in texts]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _remarks(block: Remarks) -> list[str]:
    heading = [f"### {_escaped(block.title)}", ""] if block.title and block.remarks else []
    return [*heading, *map(_item, block.remarks)]


def _item(remark: Remark) -> str:
    return f"- **{_escaped(remark.label)}** {_escaped(remark.text)}"


def _code_span(text: str) -> str:
    """The text in a code span, whatever backticks it has; pipes escaped, as a table needs even there."""
    if not text:
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{blank}{text}{blank}{fence}".replace("|", r"\|")


def _html(text: str) -> str:
    return html.escape(_SCREEN.show(text))


def _escaped(text: str) -> str:
    """The text with everything escaped that Markdown would act on."""
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", _SCREEN.show(text))
