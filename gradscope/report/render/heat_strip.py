"""Heat strips: the error of many layers as one line of characters, in execution order from left to right.

A character stands for one layer, or for the worst of several neighbours where there is no room for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, TENSOR
from gradscope.report.render.document import Remark, Remarks
from gradscope.report.render.screen import Screen

#: Fewer layers than this a table shows as well.
_FEWEST: Final = 8

#: Up to which multiple of its tolerance a row has each level; the last is for everything above.
_LEVELS: Final = (0.0, 0.1, 1.0, 10.0, 100.0)
_BLOCKS: Final = "·▁▃▅▆█"
_ASCII: Final = ".-=+*#"
_LEGEND: Final = ("equal", "0.1", "1", "10", "100", "more times the tolerance")

#: Columns that the labels of the directions take.
_MARGIN: Final = 12


def heat_strips(comparison: Comparison, screen: Screen) -> Iterator[Remarks]:
    """The error along depth in each direction, where a terminal shows it and there is depth to it.

    Args:
        comparison: The comparison.
        screen: A terminal; elsewhere there is nothing to show.
    """
    if screen.width is None:
        return
    characters = _BLOCKS if screen.unicode else _ASCII
    directions = {"forward": (ACTIVATION, TENSOR), "backward": (ACTIVATION_GRAD,)}
    strips = tuple(
        Remark(label=name, text=_strip(rows, characters, max(screen.width - _MARGIN, 1)))
        for name, families in directions.items()
        if len(rows := _in_order(comparison.rows, families)) >= _FEWEST
    )
    legend = "  ".join(f"{character} {upto}" for character, upto in zip(characters, _LEGEND, strict=True))
    if strips:
        yield Remarks(title="Error along depth", remarks=(*strips, Remark(label="", text=legend)))


def _in_order(rows: Sequence[ComparisonRow], families: Sequence[str]) -> list[ComparisonRow]:
    return sorted((row for row in rows if row.family in families and row.compared), key=lambda row: row.index)


def _strip(rows: Sequence[ComparisonRow], characters: str, width: int) -> str:
    cells = min(len(rows), width)
    bounds = [len(rows) * cell // cells for cell in range(cells + 1)]
    return "".join(characters[max(map(_level, rows[start:end]))] for start, end in pairwise(bounds))


def _level(row: ComparisonRow) -> int:
    needed = math.inf if row.needed is None else row.needed
    if row.tolerance is None or row.tolerance == 0:
        # Judged by something else than a limit on rel_l2: passed or not is all that compares.
        return 0 if needed == 0 else (2 if row.status == "same" else len(_LEVELS))
    return sum(needed / row.tolerance > level for level in _LEVELS)
