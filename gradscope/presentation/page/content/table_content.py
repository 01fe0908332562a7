"""Tables as content are columns of values as they are, so that the browser can sort and filter them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gradscope.comparison.metrics.metrics import METRICS
from gradscope.dump.record import Json
from gradscope.presentation.page.content.json_values import Keys, lists, rounded, shortened
from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.reports.explaining.printed_words import HEADINGS
from gradscope.presentation.tables.numbers import Range
from gradscope.presentation.tables.table import Cell, Table
from gradscope.stats.columns import COLUMNS

_ABOUT: Final = {**HEADINGS, **{spec.name: spec.sentence for spec in (*METRICS, *COLUMNS)}}


def tables_content(tables: Iterable[Table], keys: Keys) -> Iterator[Streamed]:
    """Yields tables as content, without columns that have no values.

    Args:
        tables: The tables.
        keys: Numbers the tensors that lines are of.

    Yields:
        For each table its `title`, `columns` (`heading`, `group`, `kind`, `about`, `priority`), `cells` by column and
            line, and the numbers of the `keys` of each line.
    """
    return (_table(table, keys) for table in tables)


def cell_content(cell: Cell) -> Json:
    """Returns a cell as JSON: a range as its two ends, a shape as JAX writes it, words as one text."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Range):
        return [rounded(cell.low), rounded(cell.high)]
    if isinstance(cell, tuple):
        sizes = all(isinstance(each, int) for each in cell)
        return f"[{','.join(map(str, cell))}]" if sizes else ", ".join(map(str, cell))
    if isinstance(cell, str):
        return shortened(cell)
    return None if cell is None else rounded(cell)


def _table(table: Table, keys: Keys) -> Streamed:
    columns, cells = table.filled_columns()
    about: list[Json] = [
        {
            "heading": column.heading,
            "group": column.group,
            "kind": column.kind,
            "priority": column.priority,
            "about": _ABOUT.get(column.heading, ""),
        }
        for column in columns
    ]
    notes: list[Json] = [*table.notes]
    return {
        "title": table.title,
        "columns": about,
        "cells": lists(map(cell_content, each) for each in cells),
        "keys": lists(map(keys.number, each) for each in table.keys_of_lines()),
        "notes": notes,
    }
