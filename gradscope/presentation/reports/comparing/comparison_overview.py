"""The overview of a comparison fits one screen: the counts of each family, and the first and the worst rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gradscope import naming
from gradscope.comparison import Comparison, ComparisonRow
from gradscope.presentation.reports.comparing.comparison_rows import COLUMNS, NAME, badness, family_order, line_of
from gradscope.presentation.tables.table import Column, Line, Table, column

_STATUSES: Final = ("different", "missing", "extra", "same")
_COUNTS: Final = (
    Column(heading="family", kind="name"),
    *(column(status, 0, "count", only_nonzero=True) for status in _STATUSES),
    column("worst rel_l2", 1),
)
_FIRST: Final = Column(heading="first", kind="words")


def overview_tables(comparison: Comparison, most: int) -> Iterator[Table]:
    """Yields the number of rows of each status in each family, and some rows that differ; nothing where none counts.

    Args:
        comparison: The comparison.
        most: The number of rows: the likeliest suspect, the first of each direction, then the worst.
    """
    rows = [row for row in comparison.rows if row.status != "same" and row.counts]
    if not rows:
        return
    yield _counts(comparison.rows)
    directions = {"forward": comparison.first_divergence.forward, "backward": comparison.first_divergence.backward}
    named = [*(("suspect", row) for row in comparison.blame.suspects[:1]), *directions.items()]
    firsts = {_key(row): name for name, row in named if row is not None}
    order = {key: at for at, key in enumerate(firsts)}
    worst = sorted(sorted(rows, key=badness, reverse=True), key=lambda row: order.get(_key(row), len(order)))
    yield Table(
        title=f"The first and the worst ({min(most, len(rows)):,} of {len(rows):,})",
        columns=(NAME, *COLUMNS, _FIRST),
        lines=tuple(_line(row, firsts) for row in worst[:most]),
        in_order=False,
    )


def _counts(rows: Sequence[ComparisonRow]) -> Table:
    families: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    return Table(
        title=f"By family ({len(rows):,} rows)",
        columns=_COUNTS,
        lines=tuple(_family_line(family, families[family]) for family in sorted(families, key=family_order)),
        in_order=False,
    )


def _family_line(family: str, rows: Sequence[ComparisonRow]) -> Line:
    counts = Counter(row.status for row in rows)
    worst = max((row.needed for row in rows if row.needed is not None), default=None)
    return Line(cells=(family, *(counts[status] for status in _STATUSES), worst), keys=())


def _key(row: ComparisonRow) -> str:
    return naming.key_of(row.family, row.name)


def _line(row: ComparisonRow, firsts: dict[str, str]) -> Line:
    line = line_of(row)
    key = _key(row)
    first = (firsts[key],) if key in firsts else None
    return line._replace(cells=(key, *line.cells[1:], first))
