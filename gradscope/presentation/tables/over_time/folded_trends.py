"""Trends of a run fit one screen: blocks and iterations that repeat share a line, those that changed most first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gradscope.presentation.tables.folding import extremes
from gradscope.presentation.tables.over_time.repeated_names import NUMBERS, repeated
from gradscope.presentation.tables.over_time.run_tables import TrendRow, last, trend_columns, trend_line
from gradscope.presentation.tables.table import Line, Table

_NOTES: Final = "name[a..b] is a to b on one line: low..high of their ends, and the one that changed most"


def folded_trends(rows: Sequence[TrendRow], most: int, *, unicode: bool) -> Table:
    """Returns the table of the trends that changed most.

    Args:
        rows: All trends.
        most: The most lines.
        unicode: Whether sparklines may have characters other than those of ASCII.
    """
    by_kind: dict[tuple[str, tuple[int, ...] | None], list[TrendRow]] = {}
    for row in rows:
        by_kind.setdefault((row.tensor.family, row.tensor.shape), []).append(row)
    groups = [
        (name, [same[at] for at in group])
        for same in by_kind.values()
        for name, group in repeated([row.tensor.key for row in same], NUMBERS)
    ]
    groups.sort(key=lambda each: -max(row.trend.change for row in each[1]))
    lines = tuple(_line(name, group, unicode=unicode) for name, group in groups[:most])
    title = f"Trends ({len(lines):,} of {len(groups):,} lines for {len(rows):,} tensors, changed most first)"
    notes = (_NOTES,) if len(groups) < len(rows) else ()
    return Table(title=title, columns=trend_columns(), lines=lines, in_order=False, notes=notes)


def _line(name: str, group: Sequence[TrendRow], *, unicode: bool) -> Line:
    shown = trend_line(max(group, key=lambda row: row.trend.change), unicode=unicode)
    if len(group) == 1:
        return shown
    firsts = [row.trend.first for row in group if not math.isnan(row.trend.first)]
    lasts = [each for row in group if (each := last(row.trend)) is not None]
    _, statistic, _, _, *rest = shown.cells
    ends = (extremes(each) if each else None for each in (firsts, lasts))
    return Line(cells=(name, statistic, *ends, *rest), keys=tuple(row.tensor.key for row in group))
