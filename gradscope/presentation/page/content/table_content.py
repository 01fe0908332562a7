"""Tables as content are columns of values as they are, so that the browser can sort and filter them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gradscope.comparison.metrics.metrics import METRICS
from gradscope.dump.record import Json
from gradscope.presentation.page.content.json_values import Keys, rounded, shortened
from gradscope.presentation.tables.numbers import Range
from gradscope.presentation.tables.table import Cell, Table
from gradscope.stats.columns import COLUMNS

_ABOUT: Final = {spec.name: spec.sentence for spec in (*METRICS, *COLUMNS)}


def tables_content(tables: Iterable[Table], keys: Keys) -> list[Json]:
    """Returns tables as content, without columns that have no values.

    Args:
        tables: The tables.
        keys: Numbers the tensors that lines are of.

    Returns:
        For each table its `title`, `columns` (`heading`, `group`, `kind`, `about`, `priority`), `cells` by column and
            line, and the numbers of the `keys` of each line.
    """
    return [_table(table.without_empty_columns(), keys) for table in tables]


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


def _table(table: Table, keys: Keys) -> Json:
    return {
        "title": table.title,
        "columns": [
            {
                "heading": column.heading,
                "group": column.group,
                "kind": column.kind,
                "priority": column.priority,
                "about": _ABOUT.get(column.heading, ""),
            }
            for column in table.columns
        ],
        "cells": [[cell_content(cell) for cell in cells] for cells in table.cells_by_column()],
        "keys": [[keys.number(key) for key in line.keys] for line in table.lines],
        "notes": list(table.notes),
    }
