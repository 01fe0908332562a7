"""Picks: which values of a row are columns of a table, and how important each is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradscope.dump.record import Json
from gradscope.report.tables.table import Cell, Column, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A column of a table, headed by the name of the value it shows."""

    column: Column

    def cell(self, values: Mapping[str, Json]) -> Cell:
        """The value as a cell, a count as a share of the size where the column is one of shares."""
        value = values.get(self.column.heading)
        if isinstance(value, list):
            return tuple(each for each in value if isinstance(each, str)) or _sizes(value)
        if self.column.kind == "share" and isinstance(value, int):
            size = values.get("size")
            return value / size if isinstance(size, int) and size else None
        return None if isinstance(value, dict) else value


def _sizes(value: list[Json]) -> tuple[int, ...]:
    return tuple(size for size in value if isinstance(size, int))


def pick(name: str, priority: int, kind: Kind = "number", *, group: str = "", only_nonzero: bool = False) -> Pick:
    """The pick of a value.

    Args:
        name: Its name in a row.
        priority: As for `Column`.
        kind: As for `Column`.
        group: As for `Column`.
        only_nonzero: As for `Column`.
    """
    return Pick(column=Column(heading=name, kind=kind, group=group, priority=priority, only_nonzero=only_nonzero))


def nonfinite(group: str = "") -> tuple[Pick, ...]:
    """Counts of what is not finite: of the first importance, and no columns where all is well."""
    return tuple(pick(name, 1, "count", group=group, only_nonzero=True) for name in ("nan", "inf"))
