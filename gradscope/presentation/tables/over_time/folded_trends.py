"""Trends of a run fit one screen: blocks and iterations that repeat share a line, those that changed most first.

A block that went the other way than those it repeats has a line of its own: it is the one to look for. Each family has
its share of the lines, because what an optimizer gathers from zero changes more than anything else in every run; that,
moving averages and the batch come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gradscope import naming
from gradscope.presentation.tables.over_time.repeated_names import NUMBERS, repeated
from gradscope.presentation.tables.over_time.run_tables import SPARKLINE_WIDTH, TrendRow, trend_columns, trend_line
from gradscope.presentation.tables.table import Line, Table

_NOTES: Final = "name[a..b]: of a to b, one that is not finite at the end, or the one that changed most"
#: The words for the order of `trend_order`.
TREND_ORDER: Final = "the model's that changed most first"
#: The families of what is beside the model: the batch, an optimizer's variables, moving averages.
_BESIDE: Final = frozenset({naming.INPUT, naming.SLOT_PREFIX, naming.AVERAGE})
#: Powers of ten, a factor of two, by which a statistic has grown or shrunk, and not only moved.
_GONE: Final = 0.3


def trend_order(row: TrendRow) -> tuple[bool, bool, float]:
    """Returns the key by which trends are sorted: the model's, those that are not finite at the end, by their change.

    Args:
        row: The trend.
    """
    return row.tensor.family.partition("/")[0] in _BESIDE, not row.trend.broken, -row.trend.change


def folded_trends(
    rows: Sequence[TrendRow], most: int, *, unicode: bool, sparkline_width: int = SPARKLINE_WIDTH
) -> Table:
    """Returns the table of the trends that changed most.

    Args:
        rows: All trends.
        most: The most lines.
        unicode: Whether sparklines may have characters other than those of ASCII.
        sparkline_width: The most characters of a sparkline.
    """
    by_kind: dict[tuple[str, tuple[int, ...] | None], list[TrendRow]] = {}
    for row in rows:
        by_kind.setdefault((row.tensor.family, row.tensor.shape), []).append(row)
    groups = [
        each
        for same in by_kind.values()
        for _, group in _repeated(same)
        for part in _same_way(group)
        for each in _repeated(part)
    ]
    groups.sort(key=lambda each: min(map(trend_order, each[1])))
    lines = tuple(
        _line(name, group, unicode=unicode, sparkline_width=sparkline_width)
        for name, group in _shares_of_families(groups, most)
    )
    lines_of_all = f"{len(lines):,} of {len(groups):,} lines for {len(rows):,} tensors"
    title = f"Trends ({lines_of_all}, {TREND_ORDER})"
    notes = (_NOTES,) if len(groups) < len(rows) else ()
    return Table(title=title, columns=trend_columns(), lines=lines, in_order=False, notes=notes)


def _shares_of_families(
    groups: Sequence[tuple[str, list[TrendRow]]], most: int
) -> Iterator[tuple[str, list[TrendRow]]]:
    """Yields so many of the groups, in their order: the first ones of each family, and of all slots together."""
    by_family: dict[str, list[int]] = {}
    for at, (_, group) in enumerate(groups):
        by_family.setdefault(group[0].tensor.family.partition("/")[0], []).append(at)
    chosen: set[int] = set()
    smallest_first = sorted(by_family.values(), key=len)
    for rank, members in enumerate(smallest_first):
        share = (most - len(chosen)) // (len(smallest_first) - rank)
        chosen.update(members[:share])
    yield from (group for at, group in enumerate(groups) if at in chosen)


def _repeated(rows: Sequence[TrendRow]) -> Iterator[tuple[str, list[TrendRow]]]:
    for name, group in repeated([row.tensor.key for row in rows], NUMBERS):
        yield name, [rows[at] for at in group]


def _same_way(group: Sequence[TrendRow]) -> Iterator[list[TrendRow]]:
    """Yields those that went where the one that changed most did, or hardly moved; then those that went against it."""
    up = max(group, key=lambda row: row.trend.change).trend.grew
    parts: tuple[list[TrendRow], list[TrendRow]] = [], []
    for row in group:
        parts[row.trend.change > _GONE and row.trend.grew != up].append(row)
    yield from filter(None, parts)


def _line(name: str, group: Sequence[TrendRow], *, unicode: bool, sparkline_width: int) -> Line:
    # A NaN must not be lost behind the numbers of another.
    most = max(group, key=lambda row: (row.trend.broken, row.trend.change))
    shown = trend_line(most, unicode=unicode, sparkline_width=sparkline_width)
    return Line(cells=(name, *shown.cells[1:]), keys=tuple(row.tensor.key for row in group))
