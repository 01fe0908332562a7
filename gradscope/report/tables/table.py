"""Tables: columns and rows of *values*, before anybody has decided how they look.

The renderers (`layout` for terminals and pipes, `markdown`, `structured` for CSV) all read this one type, so that no
format can show what another does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gradscope.dump.record import Json
from gradscope.report.tables.numbers import Range

#: What the cells of a column are, which decides how they are written and aligned. `words` are remarks, by meaning
#: coloured; a `shape` is a tuple of sizes, an `amount` a large count in thousands, millions and so on.
Kind: TypeAlias = Literal["name", "text", "words", "shape", "number", "share", "count", "amount"]

#: One value; None where none applies.
Cell: TypeAlias = "bool | int | float | str | tuple[int, ...] | tuple[str, ...] | Range | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        heading: What stands above it.
        kind: What its cells are.
        group: What stands above several neighbouring columns; "" for none.
        priority: Which columns go first where the width is short: the largest number first, 0 never.
        only_nonzero: Leave the column out where all its cells are zero.
    """

    heading: str
    kind: Kind
    group: str = ""
    priority: int = 0
    only_nonzero: bool = False

    @property
    def full_heading(self) -> str:
        """The heading with the group's, for formats that know no groups."""
        return f"{self.group} {self.heading}".lstrip()

    def cell(self, values: Mapping[str, Json]) -> Cell:
        """The value of a row that the column is headed by, a count as a share of the size in a column of shares."""
        value = values.get(self.heading)
        if isinstance(value, list):
            return tuple(each for each in value if isinstance(each, str)) or _sizes(value)
        if self.kind == "share" and isinstance(value, int):
            size = values.get("size")
            return value / size if isinstance(size, int) and size else None
        return None if isinstance(value, dict) else value

    def holds(self, cells: Sequence[Cell]) -> bool:
        """Whether there is anything to show in a column of these cells."""
        return any(cell is not None and not (self.only_nonzero and cell == 0) for cell in cells)


def column(name: str, priority: int, kind: Kind = "number", *, group: str = "", only_nonzero: bool = False) -> Column:
    """The column that shows a value of rows.

    Args:
        name: The name of the value in a row.
        priority: As for `Column`.
        kind: As for `Column`.
        group: As for `Column`.
        only_nonzero: As for `Column`.
    """
    return Column(heading=name, kind=kind, group=group, priority=priority, only_nonzero=only_nonzero)


def _sizes(value: list[Json]) -> tuple[int, ...]:
    return tuple(size for size in value if isinstance(size, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table: a cell per column, and the keys of the tensors whose values they are."""

    cells: tuple[Cell, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. The first column is the name.

    Attributes:
        title: What it shows.
        columns: Its columns.
        lines: Its lines, each with as many cells as there are columns.
        in_order: Whether lines stand in execution order, so that neighbours share the beginnings of their names.
        remarks: Sentences that belong below it.
    """

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    in_order: bool = True
    remarks: tuple[str, ...] = ()

    def cells(self, position: int) -> tuple[Cell, ...]:
        """The cells of the column at a position."""
        return tuple(line.cells[position] for line in self.lines)

    def without_empty_columns(self) -> Table:
        """The same table, without the columns that hold nothing; the name stays."""
        kept = [n for n, column in enumerate(self.columns) if not n or column.holds(self.cells(n))]
        lines = tuple(replace(line, cells=tuple(line.cells[n] for n in kept)) for line in self.lines)
        return replace(self, columns=tuple(self.columns[n] for n in kept), lines=lines)
