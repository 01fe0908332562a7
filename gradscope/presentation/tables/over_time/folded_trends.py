"""The trends of a run on one screen: blocks and iterations that repeat share a line, those that changed most first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gradscope.presentation.tables.folding import extremes
from gradscope.presentation.tables.over_time.repeated_names import NUMBERS, repeated
from gradscope.presentation.tables.over_time.run_tables import TrendRow, trend_columns, trend_line
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
    groups.sort(key=lambda each: -max(map(_change, each[1])))
    lines = tuple(_line(name, group, unicode=unicode) for name, group in groups[:most])
    title = f"Trends ({len(lines):,} of {len(groups):,} lines for {len(rows):,} tensors, changed most first)"
    notes = (_NOTES,) if len(groups) < len(rows) else ()
    return Table(title=title, columns=trend_columns(), lines=lines, in_order=False, notes=notes)


def _line(name: str, group: Sequence[TrendRow], *, unicode: bool) -> Line:
    shown = trend_line(max(group, key=_change), unicode=unicode)
    if len(group) == 1:
        return shown
    firsts, lasts = ([each for each in ends if not math.isnan(each)] for ends in zip(
        *((row.trend.first, row.trend.last) for row in group), strict=True
    ))  # fmt: skip
    _, statistic, _, _, *rest = shown.cells
    ends = (extremes(each) if each else None for each in (firsts, lasts))
    return Line(cells=(name, statistic, *ends, *rest), keys=tuple(row.tensor.key for row in group))


def _change(row: TrendRow) -> float:
    """Returns by how many powers of ten a statistic changed; infinite where it ended in what is not finite."""
    first, last = abs(row.trend.first), abs(row.trend.last)
    if math.isinf(last) or (row.trend.values and math.isnan(row.trend.values[-1]) and not math.isnan(last)):
        return math.inf
    return abs(math.log10(last / first)) if 0 < first < math.inf and last > 0 else 0.0
