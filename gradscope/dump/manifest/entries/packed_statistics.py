"""The statistics of many tensors are packed by column: an array of numbers takes a tenth of what objects take.

Those of one tensor are a view on its row, a mapping as any other; `StatisticsColumns` and `numbers_of` read one
statistic of many tensors.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import suppress
from itertools import count, repeat
from operator import attrgetter
from typing import Any, Final, TypeAlias

from gradscope.dump.manifest.entries.packed_values import HISTOGRAM, EqualTexts, Histograms
from gradscope.dump.manifest.json_fields import LARGEST
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json

#: The most names that statistics of one dump have: a page has a column for each. There are about sixty.
MOST_STATISTICS: Final = 256

#: The values of one statistic: an array where all are floats, or all integers of 64 bits.
Values: TypeAlias = "array[float] | array[int] | EqualTexts | Histograms | list[Json]"

#: The code of the arrays that hold numbers of a type.
_CODES: Final = {float: "d", int: "q"}

#: The most tables, and the most columns of one. A dump has a dozen tables of thirty columns.
_MOST_TABLES: Final = 64
_MOST_NAMES: Final = MOST_STATISTICS

#: The bytes of a number in a column, and the integers that are one object wherever they are.
_NUMBER_BYTES: Final = 8
_SHARED_INTEGERS: Final = range(-5, 257)

#: The bytes of a number in a list, but for the pointer to it.
_OBJECT_BYTES: Final = 32

#: The most different texts of which each is kept once.
_FEW: Final = 64

#: Does something about a number of bytes, such as to take them of a budget.
Spend: TypeAlias = Callable[[int], object]


class StatisticsTable:
    """`StatisticsTable` has the statistics of tensors that have statistics of the same names.

    Attributes:
        columns: The values by name, one for each tensor.
        rows: The number of tensors.
    """

    __slots__ = ("columns", "rows")

    def __init__(self, names: Iterable[str]) -> None:
        self.columns: dict[str, Values] = {name: Histograms() if name == HISTOGRAM else [] for name in names}
        self.rows = 0

    def extend(self, rows: Sequence[Iterable[Json]], spend: Spend) -> None:
        """Adds the values of some tensors, in the order of the columns; spends about as many bytes as they take."""
        for name, values in zip(self.columns, zip(*rows, strict=True), strict=True):
            self.columns[name] = _extended(self.columns[name], values, spend)
        self.rows += len(rows)


class PackedStatistics(Mapping[str, Json]):
    """`PackedStatistics` are those of one tensor: a row of a table.

    Attributes:
        table: The table.
        row: The position of the row.
    """

    __slots__ = ("row", "table")

    def __init__(self, table: StatisticsTable, row: int) -> None:
        self.table = table
        self.row = row

    def __getitem__(self, name: str) -> Json:
        return self.table.columns[name][self.row]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a statistic, or a default where it is missing."""
        column = self.table.columns.get(name)
        return default if column is None else column[self.row]

    def __contains__(self, name: object) -> bool:
        return name in self.table.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.columns)

    def __len__(self) -> int:
        return len(self.table.columns)

    def items(self) -> ItemsView[str, Json]:
        """Returns names and values."""
        row = self.row
        return {name: column[row] for name, column in self.table.columns.items()}.items()

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class Packer:
    """`Packer` packs statistics, of which many tensors have those of the same names.

    Statistics of a hostile file, all of other names or of very many, stay as they are: a table of one row takes more.

    Args:
        spend: Is called with about how many bytes statistics take, before they are kept or take more than they did.
    """

    def __init__(self, spend: Spend = lambda _: None) -> None:
        self._spend = spend
        self._tables: dict[tuple[str, ...], StatisticsTable] = {}
        self._unpacked: list[Mapping[str, Json]] = []

    def pack(self, statistics: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
        """Returns the statistics of some tensors, those that can be as rows of tables."""
        if max(map(len, statistics), default=0) > _MOST_NAMES:
            self._keep(statistics)
            return [*statistics]
        names = [*map(tuple, statistics)]
        by_names: dict[tuple[str, ...], list[Mapping[str, Json]]] = {own: [] for own in names}
        if len(by_names) == 1:
            by_names = {names[0]: [*statistics]}
        else:
            for own, each in zip(names, statistics, strict=True):
                by_names[own].append(each)
        packed: dict[tuple[str, ...], Iterator[Mapping[str, Json]]] = {}
        for own, rows in by_names.items():
            table = self._table(own)
            if table is None:
                self._keep(rows)
                packed[own] = iter(rows)
            else:
                packed[own] = map(PackedStatistics, repeat(table), count(table.rows))
                table.extend([each.values() for each in rows], self._spend)
        return [*map(next, map(packed.__getitem__, names))]

    def columns(self) -> Iterator[Values | ValuesView[Json]]:
        """Yields the columns of all tables, and the values of each tensor whose statistics were not packed."""
        yield from (column for table in self._tables.values() for column in table.columns.values())
        yield from (each.values() for each in self._unpacked)

    def _keep(self, statistics: Sequence[Mapping[str, Json]]) -> None:
        self._spend(sum(map(_size_bytes, statistics)))
        self._unpacked += statistics

    def _table(self, names: tuple[str, ...]) -> StatisticsTable | None:
        """Returns the table of statistics of some names; None where it would be one too many."""
        found = self._tables.get(names)
        if found is None and len(self._tables) < _MOST_TABLES:
            found = self._tables[names] = StatisticsTable(names)
        return found


class StatisticsColumns:
    """`StatisticsColumns` read the statistics of some tensors one name at a time.

    Args:
        statistics: The statistics of each tensor, packed or not.
    """

    def __init__(self, statistics: Sequence[Mapping[str, Json]]) -> None:
        self._statistics = statistics
        self._tables, self._rows = list[StatisticsTable](), list[int]()
        with suppress(AttributeError):  # mappings of another kind
            self._tables, self._rows = [*map(_TABLE, statistics)], [*map(_ROW, statistics)]
        self._different = {*self._tables}

    def values(self, name: str, *, missing: Any = None) -> list[Any]:
        """Returns one statistic of each tensor; `missing` where it is missing."""
        if not self._tables:
            return [each.get(name, missing) for each in self._statistics]
        columns = {table: table.columns.get(name) for table in self._different}
        if len(columns) == 1:
            (column,) = columns.values()
            return [missing] * len(self._rows) if column is None else [*map(column.__getitem__, self._rows)]
        found = zip(map(columns.__getitem__, self._tables), self._rows, strict=True)
        return [missing if column is None else column[row] for column, row in found]


def numbers_of(statistics: Sequence[Mapping[str, Json]], name: str) -> list[float | None]:
    """Returns one statistic of some tensors as a number; None where it is missing.

    Raises:
        DumpError: It is no number in one of them.
    """
    missing = object()
    values = StatisticsColumns(statistics).values(name, missing=missing)
    kinds = {*map(type, values)}
    if kinds <= {float}:
        return values
    if kinds == {int} and min(values) >= -LARGEST and max(values) <= LARGEST:
        return [*map(float, values)]
    return [None if value is missing else as_float(value) for value in values]


def different_names(statistics: Iterable[Mapping[str, Json]]) -> frozenset[str]:
    """Returns the names of the statistics that any of some tensors has."""
    tables: set[StatisticsTable] = set()
    names: set[str] = set()
    for each in statistics:
        if isinstance(each, PackedStatistics):
            tables.add(each.table)
        else:
            names.update(each)
    return frozenset(names.union(*(table.columns for table in tables)))


def _size_bytes(value: Any) -> int:
    """Returns how many bytes a JSON value takes, with all in it; most small integers take none of their own."""
    size = sys.getsizeof(value)
    if isinstance(value, list):
        return size + sum(
            [_size_bytes(each) for each in value if type(each) is not int or each not in _SHARED_INTEGERS]
        )
    if isinstance(value, Mapping):
        return size + sum([_size_bytes(name) + _size_bytes(each) for name, each in value.items()])
    return size


_TABLE: Final = attrgetter("table")
_ROW: Final = attrgetter("row")


def _extended(column: Values, values: tuple[Any, ...], spend: Spend) -> Values:
    """Returns a column with more values."""
    if isinstance(column, Histograms):
        odd = column.extend(values, spend)
        spend(sum(map(_size_bytes, odd)))
        return column
    kinds = [*map(type, values)]
    code = _CODES.get(kinds[0]) if kinds.count(kinds[0]) == len(kinds) else None
    spend(_NUMBER_BYTES * len(values))
    if code is not None and (not column or (isinstance(column, array) and column.typecode == code)):
        try:
            more = struct.pack(f"{len(values)}{code}", *values)
        except struct.error:  # an integer of more bits
            pass
        else:
            packed = column if isinstance(column, array) else array(code)
            packed.frombytes(more)
            return packed
    spend(sum(map(_size_bytes, values)))
    if kinds.count(str) == len(kinds):
        if isinstance(column, EqualTexts) and column.extend(values):
            return column
        if not column and len({*values}) > _FEW and (texts := EqualTexts.of(values)) is not None:
            return texts
    if isinstance(column, array):
        spend(_OBJECT_BYTES * len(column))
    listed: list[Json] = column if isinstance(column, list) else [*column.tolist()]
    listed += _shared(values, {*kinds})
    return listed


def _shared(values: tuple[Any, ...], kinds: set[type]) -> Iterable[Json]:
    """Returns values of which equal ones are one object, where few are different: dtypes and shapes."""
    if kinds not in ({str}, {list}):
        return values
    keys = [*map(str, values)] if kinds == {list} else values
    known = dict(zip(keys, values, strict=True))
    return map(known.__getitem__, keys) if len(known) <= _FEW else values
