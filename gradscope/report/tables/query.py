"""Queries: which rows of a dump are shown, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.naming import Selection
from gradscope.naming.patterns import nearest_hint
from gradscope.report.tables.dump_rows import Row, value_family


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked of a dump's rows.

    Attributes:
        selection: Which names or keys.
        families: Which families; None for all.
        depth: Layers of at most so many path components; None for all. Parameters and inputs are no layers.
        sort: Column to sort by, `-COLUMN` for the largest first; None for execution order. Rows without it come last.
    """

    selection: Selection = field(default_factory=Selection)
    families: frozenset[str] | None = None
    depth: int | None = None
    sort: str | None = None

    def __call__(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """The rows asked for.

        Raises:
            UsageError: A pattern selects nothing, or no row has the column to sort by; the hint names the nearest.
        """
        if self.selection.select:
            self.selection.require_matches([*(row.name for row in rows), *(row.key for row in rows)])
        return _sorted([row for row in rows if self._wants(row)], self.sort)

    def _wants(self, row: Row) -> bool:
        if self.families is not None and row.family not in self.families:
            return False
        return self._shallow(row) and self.selection.wants(row.name, row.key)

    def _shallow(self, row: Row) -> bool:
        if self.depth is None or value_family(row.family) != naming.ACTIVATION:
            return True
        return row.name.count("/") < self.depth


def _sorted(rows: list[Row], sort: str | None) -> tuple[Row, ...]:
    if sort is None or not rows:
        return tuple(rows)
    column, descending = sort.removeprefix("-"), sort.startswith("-")
    columns = list(dict.fromkeys(name for row in rows for name in row.to_json()))
    if column not in columns:
        raise UsageError(f"no column {column!r} to sort by", hint=nearest_hint(column, columns))
    present = [row for row in rows if column in row.to_json()]
    present.sort(key=lambda row: _rank(row, column), reverse=descending)
    return (*present, *(row for row in rows if column not in row.to_json()))


def _rank(row: Row, column: str) -> tuple[bool, float, str]:
    value = row.to_json()[column]
    if isinstance(value, list):
        return False, float(len(value)), str(value)
    if not isinstance(value, int | float):
        return False, 0.0, str(value)
    return math.isnan(value), value, ""
