"""A table has columns and lines of *values*, before these are rendered.

All renderers (`text_layout` for terminals and pipes, `markdown`, `structured` for CSV) read this type, so that no
format can show a value that another does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, cast, overload

from gradscope.dump.record import Json
from gradscope.presentation.tables.numbers import Range

#: The kind of a column's cells, which decides how they are written and aligned. `words` are findings or a status,
#: coloured by meaning; a `shape` is a tuple of sizes, an `amount` a large count in thousands, millions and so on.
Kind: TypeAlias = Literal["name", "text", "words", "shape", "number", "share", "count", "amount"]

#: One value; None where none applies.
Cell: TypeAlias = "bool | int | float | str | tuple[int, ...] | tuple[str, ...] | Range | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A `Column` describes one column of a table.

    Attributes:
        heading: The text above it.
        kind: The kind of its cells.
        group: The text above several neighbouring columns; "" for none.
        priority: Which columns are dropped first where the width is short: the largest number first, 0 never.
        only_nonzero: Whether the column is left out where all its cells are zero.
        pair: What columns that say nothing without each other have in common: where one is dropped, so are the others;
            "" for none.
    """

    heading: str
    kind: Kind
    group: str = ""
    priority: int = 0
    only_nonzero: bool = False
    pair: str = ""

    @property
    def full_heading(self) -> str:
        """The heading with the group's, for formats without groups."""
        return f"{self.group} {self.heading}".lstrip()

    def cell(self, values: Mapping[str, Json | tuple[int, ...]]) -> Cell:
        """Returns the value of a row for this column; in a column of shares, a count as a share of the size."""
        return self.cell_of(values.get)

    def cell_of(self, value_of: Callable[[str], Json | tuple[int, ...]]) -> Cell:
        """Returns what `cell` does, of a row whose values are looked up one by one."""
        value = value_of(self.heading)
        if isinstance(value, list):
            return tuple(each for each in value if isinstance(each, str)) or _sizes(value)
        if self.kind == "share" and isinstance(value, int):
            size = value_of("size")
            return value / size if isinstance(size, int) and size else None
        return None if isinstance(value, dict) else value

    def cells(
        self, values: Sequence[Json | tuple[int, ...]], sizes: Callable[[], Sequence[Json | tuple[int, ...]]]
    ) -> Sequence[Cell]:
        """Returns some values as cells, as `cell` does.

        Args:
            values: The values; None where there is none.
            sizes: Returns the size of each row's tensor.
        """
        # Asked once for a column, because most columns have no value that is shown as something else.
        kinds = {*map(type, values)}
        converted = (list, dict, bool, int) if self.kind == "share" else (list, dict)
        if kinds.isdisjoint(converted):
            return cast("Sequence[Cell]", values)
        if self.kind == "share":
            return [self.cell({self.heading: value, "size": size}) if type(value) is not int or type(size) is not int
                    else value / size if size else None
                    for value, size in zip(values, sizes(), strict=True)]  # fmt: skip
        known: dict[str, Cell] = {}  # each shape once, because tensors share them
        for value in values:
            if isinstance(value, list | dict) and (text := str(value)) not in known:
                known[text] = self.cell({self.heading: value})
        return [known[str(value)] if isinstance(value, list | dict) else value for value in values]

    def has_values(self, cells: Sequence[Cell]) -> bool:
        """Returns whether any of these cells has something to show."""
        return len(cells) > cells.count(None) + (cells.count(0) if self.only_nonzero else 0)


def column(name: str, priority: int, kind: Kind = "number", *, group: str = "", only_nonzero: bool = False) -> Column:
    """Returns the column that shows a value of rows.

    Args:
        name: The name of the value in a row.
        priority: As for `Column`.
        kind: As for `Column`.
        group: As for `Column`.
        only_nonzero: As for `Column`.

    Returns:
        The column.
    """
    return Column(heading=name, kind=kind, group=group, priority=priority, only_nonzero=only_nonzero)


def _sizes(value: list[Json]) -> tuple[int, ...]:
    return tuple(size for size in value if isinstance(size, int))


class Line(NamedTuple):  # which is made in a fifth of a dataclass's time, once for each tensor
    """A `Line` has a cell per column, and the keys of the tensors whose values these are."""

    cells: tuple[Cell, ...]
    keys: tuple[str, ...]


class ColumnLines(Sequence[Line]):
    """`ColumnLines` are lines that were made column by column; each is made when it is requested.

    Args:
        columns: The cells of each column.
        keys: Returns the keys of each line.

    Attributes:
        columns: The cells.
        keys: Returns the keys.
    """

    def __init__(self, columns: Sequence[Sequence[Cell]], keys: Callable[[], Iterable[tuple[str, ...]]]) -> None:
        self.columns = [*map(tuple, columns)]
        self.keys = keys

    @cached_property
    def _lines(self) -> tuple[Line, ...]:
        return tuple(map(Line, zip(*self.columns, strict=True), self.keys()))

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Line, ...]: ...
    def __getitem__(self, index: int | slice) -> Line | tuple[Line, ...]:
        return self._lines[index]

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self.columns[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A `Table` has columns and lines; the first column is the name.

    Attributes:
        title: What it shows.
        columns: Its columns.
        lines: Its lines, each with as many cells as there are columns.
        in_order: Whether lines are in execution order, so that neighbours share the beginnings of their names.
        notes: Sentences that are shown below it.
        cuts_names: Whether a long name may lose its middle; otherwise it gets a line of its own.
    """

    title: str
    columns: tuple[Column, ...]
    lines: Sequence[Line]
    in_order: bool = True
    notes: tuple[str, ...] = ()
    cuts_names: bool = True

    def cells_by_column(self) -> list[tuple[Cell, ...]]:
        """Returns the cells of each column."""
        if isinstance(self.lines, ColumnLines):
            return self.lines.columns
        columns = list(zip(*(line.cells for line in self.lines), strict=True))
        return columns or [()] * len(self.columns)

    def keys_of_lines(self) -> Iterable[tuple[str, ...]]:
        """Returns the keys of the tensors of each line."""
        return self.lines.keys() if isinstance(self.lines, ColumnLines) else (line.keys for line in self.lines)

    def without_empty_columns(self) -> Table:
        """Returns the table without the columns that have no values; the name stays."""
        kept, columns = self.filled_columns()
        rows = zip(*columns, strict=True)
        lines = tuple([Line(cells, line.keys) for cells, line in zip(rows, self.lines, strict=True)])
        return replace(self, columns=kept, lines=lines)

    def with_common_in_title(self, heading: str) -> Table:
        """Returns the table without a column in which all lines have the same word; the title, `loss (3)`, has it."""
        at = next((n for n, column in enumerate(self.columns) if column.heading == heading), 0)
        cells = self.cells_by_column()
        if not at or len(self.lines) < 2 or len(set(cells[at])) != 1:
            return self
        kept = [n for n in range(len(self.columns)) if n != at]
        rows = zip(*(cells[n] for n in kept), strict=True)
        return replace(
            self,
            title=f"{self.title.removesuffix(')')}, all {cells[at][0]})",
            columns=tuple(self.columns[n] for n in kept),
            lines=tuple(Line(row, line.keys) for row, line in zip(rows, self.lines, strict=True)),
        )

    def filled_columns(self) -> tuple[tuple[Column, ...], list[tuple[Cell, ...]]]:
        """Returns the columns that have values, and the name, and the cells of each."""
        cells = self.cells_by_column()
        kept = [n for n, column in enumerate(self.columns) if not n or column.has_values(cells[n])]
        return tuple(self.columns[n] for n in kept), [cells[n] for n in kept]
