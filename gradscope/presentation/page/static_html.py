"""Notes and tables become HTML that is read without JavaScript, with all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from gradscope.naming import printable
from gradscope.presentation.page.content.json_values import shortened
from gradscope.presentation.page.page_parts import PageNotes
from gradscope.presentation.render.cells import RIGHT, column_texts
from gradscope.presentation.render.screen import BAD, DOUBTFUL, GOOD, Screen
from gradscope.presentation.tables.table import Column, Table

_SCREEN: Final = Screen()
_CLASSES: Final = {GOOD: "good", DOUBTFUL: "doubtful", BAD: "bad"}


def text_html(text: str) -> str:
    """Returns a text as HTML; what would be invisible or turn the line around is an escape."""
    return html.escape(printable(shortened(text)))


def summary_html(summary: Sequence[PageNotes | Table]) -> str:
    """Returns notes and tables as HTML.

    Args:
        summary: The notes and tables; those without a note or a line are left out.
    """
    return "".join("".join(_table(each) if isinstance(each, Table) else _notes(each)) for each in summary)


def link_to(key: str, step: int | None = None) -> str:
    """Returns the address on the page at which a tensor, a step, or both are selected, as an attribute's value."""
    tensor = [f"tensor={quote(shortened(key), safe='/', errors='replace')}"] if key else []
    return html.escape("#" + "&".join([*tensor, *([] if step is None else [f"step={step}"])]))


def _notes(block: PageNotes) -> Iterator[str]:
    if not block.notes:
        return
    if block.title:
        yield f"<h2>{text_html(block.title)}</h2>"
    yield '<dl class="notes">'
    keys = [*block.keys, *[""] * (len(block.notes) - len(block.keys))]
    steps = [*block.steps, *[None] * (len(block.notes) - len(block.steps))]
    for note, key, step in zip(block.notes, keys, steps, strict=True):
        text = text_html(note.text)
        linked = text if not key and step is None else f'<a href="{link_to(key, step)}">{text}</a>'
        yield f'<dt class="{_CLASSES.get(note.style, "plain")}">{text_html(note.label)}</dt><dd>{linked}</dd>'
    yield "</dl>"


def _table(table: Table) -> Iterator[str]:
    shown = table.without_empty_columns()
    if not shown.lines:
        return
    yield f'<h2>{text_html(shown.title)}</h2><div class="wide"><table><thead>'
    if any(column.group for column in shown.columns):
        yield f"<tr>{''.join(_groups(shown.columns))}</tr>"
    yield f"<tr>{''.join(map(_heading, shown.columns))}</tr></thead><tbody>"
    texts = [column_texts(*each, _SCREEN) for each in zip(shown.columns, shown.cells_by_column(), strict=True)]
    for line, cells in zip(shown.lines, zip(*texts, strict=True), strict=True):
        first = text_html(cells[0])
        name = f'<a href="{link_to(line.keys[0])}">{first}</a>' if line.keys else first
        others = (_cell(column, text) for column, text in zip(shown.columns[1:], cells[1:], strict=True))
        yield f'<tr><th scope="row">{name}</th>{"".join(others)}</tr>'
    yield "</tbody></table></div>"
    for note in shown.notes:
        yield f'<p class="note">{text_html(note)}</p>'


def _groups(columns: Sequence[Column]) -> Iterator[str]:
    at = 0
    while at < len(columns):
        group = columns[at].group
        width = next((n for n, each in enumerate(columns[at:]) if each.group != group), len(columns) - at)
        yield f'<th colspan="{width}" class="group">{text_html(group)}</th>'
        at += width


def _heading(column: Column) -> str:
    kind = ' class="number"' if column.kind in RIGHT else ""
    return f'<th scope="col"{kind}>{text_html(column.heading)}</th>'


def _cell(column: Column, text: str) -> str:
    kind = ' class="number"' if column.kind in RIGHT else ""
    return f"<td{kind}>{text_html(text.strip())}</td>"
