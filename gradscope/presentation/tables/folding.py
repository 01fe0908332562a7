"""Folding shows the iterations of a loop on one line, each number as its range over the iterations.

    blocks[0]/attn   0.41                blocks[0..2]/attn   0.41..0.97
    blocks[1]/attn   0.97       ->
    blocks[2]/attn   0.55

Lines fold when their names differ in iterations only, these make up complete ranges, and the shapes agree. A finding of
only some iterations is shown with their number.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from gradscope.naming.numbering import NUMBER
from gradscope.presentation.tables.numbers import Range
from gradscope.presentation.tables.table import Cell, Column, Line, Table

_ITERATION: Final = re.compile(rf"\[({NUMBER})\]")
#: The text of a cell whose texts differ, such as the tensors of which the iterations of an alias are aliases.
_SEVERAL: Final = "(several)"


def folded(table: Table, iterated: Collection[str]) -> Table:
    """Returns the table with the iterations of loops on one line each.

    Args:
        table: A table in execution order.
        iterated: Keys of the tensors that were made in loops; brackets in other names are not iterations.

    Returns:
        The table, with a note below it where lines were folded; a folded line has the keys of all its iterations.
    """
    groups: dict[tuple[str, bool], list[Line]] = {}
    for line in table.lines:
        groups.setdefault(_template(line, iterated), []).append(line)
    lines = [each for group in groups.values() for each in _fold(table.columns, group)]
    if len(lines) == len(table.lines):
        return table
    note = (
        f"{len(table.lines):,} lines folded to {len(lines):,}: name[a..b] stands for iterations a to b, "
        "low..high for the extremes over them; --no-fold shows each"
    )
    return replace(table, lines=tuple(lines), notes=(*table.notes, note))


def _template(line: Line, iterated: Collection[str]) -> tuple[str, bool]:
    """Returns the key of lines that may fold: the name without its iterations, or the full name outside loops."""
    name, loops = str(line.cells[0]), any(key in iterated for key in line.keys)
    return (_ITERATION.sub("[]", name) if loops else name), loops


def _fold(columns: Sequence[Column], lines: list[Line]) -> list[Line]:
    name = _common_name([str(line.cells[0]) for line in lines])
    shapes = [n for n, column in enumerate(columns) if column.kind == "shape"]
    if name is None or any(line.cells[n] != lines[0].cells[n] for n in shapes for line in lines):
        return lines
    cells = (_fold_cells(column, [line.cells[n] for line in lines]) for n, column in enumerate(columns) if n)
    return [Line(cells=(name, *cells), keys=tuple(key for line in lines for key in line.keys))]


def _common_name(names: Sequence[str]) -> str | None:
    """Returns the name of all iterations of several names; None where there is one only, or iterations are missing."""
    iterations = [tuple(map(int, _ITERATION.findall(name))) for name in names]
    ranges = [(min(each), max(each)) for each in zip(*iterations, strict=True)]
    complete = math.prod(high - low + 1 for low, high in ranges)
    # Any iterations of a file from anywhere may have one hash, but not those of complete ranges.
    if not 1 < complete <= len(names) or len({*iterations}) != complete:
        return None
    spelt = iter(f"[{low}]" if low == high else f"[{low}..{high}]" for low, high in ranges)
    return _ITERATION.sub(lambda _: next(spelt), names[0])


def _fold_cells(column: Column, cells: Sequence[Cell]) -> Cell:
    present = [cell for cell in cells if cell is not None]
    if len(set(present)) < 2 and len(present) in (0, len(cells)):
        return present[0] if present else None
    if column.kind == "words":
        return _fold_words([cell for cell in present if isinstance(cell, tuple)], len(cells))
    if column.kind == "name":
        return _fold_names([str(cell) for cell in present])
    if column.kind == "text":
        return _SEVERAL
    return extremes([cell for cell in present if isinstance(cell, int | float)])


def _fold_names(names: Sequence[str]) -> Cell:
    """Returns several names, those that differ in iterations only as one."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(_ITERATION.sub("[]", name), []).append(name)
    return ", ".join(found for group in groups.values() for found in (_common_name(group) or ", ".join(group),))


def _fold_words(cells: Sequence[tuple[object, ...]], total: int) -> Cell:
    counts = Counter(str(word) for cell in cells for word in cell)
    return tuple(word if count == total else f"{word} {count}/{total}" for word, count in counts.items())


def extremes(numbers: Sequence[float]) -> Cell:
    """Returns the range of some numbers; NaN where one of them is NaN."""
    # NaN has no order, and must not be lost.
    if any(map(math.isnan, numbers)):
        return math.nan
    low, high = min(numbers), max(numbers)
    return low if low == high else Range(low, high)
