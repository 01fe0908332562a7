"""Cells are written as text by one function for each kind of column, the same for every format that people read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from gradscope.presentation.render.screen import Screen
from gradscope.presentation.tables.numbers import amount_column, count_column, number, number_column, share_column
from gradscope.presentation.tables.table import Cell, Column, Kind

#: The kinds that are aligned to the right, so that digits are above digits.
RIGHT: Final[frozenset[Kind]] = frozenset({"number", "share", "count", "amount"})

_NUMERIC: Final[Mapping[Kind, Callable[[Sequence[Any]], list[str]]]] = MappingProxyType(
    {"number": number_column, "share": share_column, "count": count_column, "amount": amount_column}
)


def column_texts(column: Column, cells: Sequence[Cell], screen: Screen) -> list[str]:
    """Returns the cells of one column as text, with numbers aligned with each other.

    Args:
        column: The column.
        cells: Its cells.
        screen: Where the text is shown.

    Returns:
        One text per cell; blank for a cell without a value.
    """
    if column.kind in _NUMERIC:
        return _NUMERIC[column.kind](cells)
    # Each object and each text once, because tensors share shapes, dtypes and lines. Not each cell: any number of
    # shapes may have one hash, and a number equals others that are written otherwise.
    own = [*map(id, cells)]
    texts = {at: _text(column.kind, cell) for at, cell in dict(zip(own, cells, strict=True)).items()}
    shown = {text: screen.show(text) for text in {*texts.values()}}
    return [*map(shown.__getitem__, map(texts.__getitem__, own))]


def _text(kind: Kind, cell: Cell) -> str:
    """Returns a cell that is not a number as text: a shape as JAX writes it, words with commas between them."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):  # a number among words, as a tolerance among rules
        return number(cell)
    if not isinstance(cell, tuple):
        return str(cell)
    return f"[{','.join(map(str, cell))}]" if kind == "shape" else ", ".join(map(str, cell))
