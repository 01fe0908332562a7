"""Sorting orders the rows of a table by one column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.naming.selecting.nearest_names import nearest_hint


class JsonRow(Protocol):
    """A `JsonRow` is a row that states its columns by name."""

    def to_json(self) -> Mapping[str, Json]:
        """Returns the columns that the row has."""
        ...


_Row = TypeVar("_Row", bound=JsonRow)


def sorted_rows(rows: Sequence[_Row], sort: str | None) -> tuple[_Row, ...]:
    """Returns rows by one of their columns; rows that do not have it come last.

    Args:
        rows: The rows.
        sort: The column, `-COLUMN` for the largest first; None for the order that the rows have.

    Raises:
        UsageError: No row has the column; the hint names the nearest.
    """
    if sort is None or not rows:
        return tuple(rows)
    column, descending = sort.removeprefix("-"), sort.startswith("-")
    stated = [row.to_json() for row in rows]
    columns = list(dict.fromkeys(name for each in stated for name in each))
    if column not in columns:
        raise UsageError(f"no column {column!r} to sort by", hint=nearest_hint(column, columns))
    present = [at for at, each in enumerate(stated) if column in each]
    present.sort(key=lambda at: _rank(stated[at][column]), reverse=descending)
    absent = (at for at, each in enumerate(stated) if column not in each)
    return tuple(rows[at] for at in (*present, *absent))


def _rank(value: Json) -> tuple[bool, float, str]:
    if isinstance(value, list):
        return False, float(len(value)), str(value)
    if not isinstance(value, int | float):
        return False, 0.0, str(value)
    return math.isnan(value), value, ""
