"""Markdown is written for pull requests, in no more characters than a comment may have.

A long table is folded, so that a comment shows its verdict and its short tables, and the reader can open the rest.
Words from a dump are in code spans or escaped: a hosting site makes a link of `embed#2` and markup of `<b>`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gradscope.presentation.render.cells import RIGHT, column_texts
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.tables.table import Cell, Column, Table

_SCREEN: Final = Screen()

#: The most lines of a table that is not folded.
_MOST_OPEN: Final = 25


#: The most characters of a comment on GitHub, without room for a heading that a workflow may put above.
_MOST_CHARACTERS: Final = 65_536 - 1_024


def document_markdown(document: Document) -> str:
    """Returns a document in GitHub's Markdown: tables under headings, notes as lists.

    Args:
        document: The document; `Notes` without a note are left out.

    Returns:
        Lines, each with its line feed, and an empty one between blocks. What does not fit a comment is left out from
            the longest tables and lists, and each says how much.
    """
    longest = max((_length(each) for each in document), default=0)
    text = _blocks(document, longest)
    fitting, too_many = 0, longest
    while len(text) > _MOST_CHARACTERS and too_many - fitting > 1:
        most = (fitting + too_many) // 2
        if len(_blocks(document, most)) > _MOST_CHARACTERS:
            too_many = most
        else:
            fitting = most
    return text if len(text) <= _MOST_CHARACTERS else _cut(_blocks(document, fitting))


def _length(block: Table | Notes) -> int:
    return len(block.lines) if isinstance(block, Table) else len(block.notes)


def _cut(text: str) -> str:
    """Returns the text with its end cut off where it is still too long: a name has no largest length."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    ending = "\n\nThe rest does not fit a comment; `--format json` has all.\n"
    return text[: _MOST_CHARACTERS - len(ending)] + ending


def _blocks(document: Document, most: int) -> str:
    """Returns a document with at most so many lines of a table and notes of a list."""
    blocks: list[list[str]] = []
    listed = False
    for each in document:
        lines = _table(each, most) if isinstance(each, Table) else _notes(each, most)
        if not lines:
            continue
        # A list continues after an empty line, so a list without a heading would continue the one before.
        blocks.append(["<!-- -->", "", *lines] if listed and lines[0].startswith("- ") else lines)
        listed = isinstance(each, Notes)
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in blocks)


def _table(table: Table, most: int) -> list[str]:
    shown = table.without_empty_columns()
    left_out = _left_out(len(shown.lines), most, "lines")
    shown = replace(shown, lines=shown.lines[:most], notes=(*left_out, *shown.notes))
    columns = [_cells(column, cells) for column, cells in zip(shown.columns, shown.cells_by_column(), strict=True)]
    lines = [
        _line([_escaped(column.full_heading) for column in shown.columns]),
        _line(["---:" if column.kind in RIGHT else "---" for column in shown.columns]),
        *map(_line, zip(*columns, strict=True)),
        *(text for note in shown.notes for text in ("", _escaped(note))),
    ]
    if len(shown.lines) <= _MOST_OPEN:
        return [f"### {_escaped(shown.title)}", "", *lines]
    # After an empty line, Markdown is read as Markdown inside HTML, too.
    return ["<details>", f"<summary>{_html(shown.title)}</summary>", "", *lines, "", "</details>"]


def _cells(column: Column, cells: Sequence[Cell]) -> list[str]:
    texts = [text.strip() for text in column_texts(column, cells, _SCREEN)]
    return texts if column.kind in RIGHT else [_code_span(text) for text in texts]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _notes(block: Notes, most: int) -> list[str]:
    heading = [f"### {_escaped(block.title)}", ""] if block.title and block.notes else []
    left_out = [f"- {text}" for text in _left_out(len(block.notes), most, "notes")]
    return [*heading, *map(_item, block.notes[:most]), *left_out]


def _left_out(number: int, most: int, what: str) -> list[str]:
    """Returns the sentence about what a comment has no room for."""
    if number <= most:
        return []
    return [f"{number - most:,} of {number:,} {what} are left out, which do not fit a comment; --format json has all"]


def _item(note: Note) -> str:
    return f"- **{_escaped(note.label)}** {_escaped(note.text)}"


def _code_span(text: str) -> str:
    """Returns the text in a code span, whatever backticks it has; pipes are escaped, as a table needs even there."""
    if not text:
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{blank}{text}{blank}{fence}".replace("|", r"\|")


def _html(text: str) -> str:
    return html.escape(_SCREEN.show(text))


def _escaped(text: str) -> str:
    """Returns the text with everything escaped that Markdown would interpret."""
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", _SCREEN.show(text))
