"""A heat strip is a sparkline of the error: one character for each layer, in execution order from left to right.

Where there is no room for all layers, a character shows the worst of several neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, TENSOR
from gradscope.presentation.render.document import Note, Notes
from gradscope.presentation.render.screen import Screen

#: The fewest layers with a heat strip; a table shows fewer as well.
_FEWEST: Final = 8

#: The largest multiple of the tolerance of each level; one more level is for everything above.
_LEVELS: Final = (0.0, 0.1, 1.0, 10.0, 100.0)
_BLOCKS: Final = "·▁▃▅▆█"
_ASCII: Final = ".-=+*#"
_LEGEND: Final = ("equal", "0.1", "1", "10", "100", "more times the tolerance")

#: Columns of the labels of the directions.
_MARGIN: Final = 12


def heat_strips(comparison: Comparison, screen: Screen) -> Iterator[Notes]:
    """Yields notes with the heat strip of each direction, where a terminal shows it and there are enough layers.

    Args:
        comparison: The comparison.
        screen: Where it is shown; only a terminal has heat strips.
    """
    if screen.width is None:
        return
    characters = _BLOCKS if screen.unicode else _ASCII
    directions = {"forward": (ACTIVATION, TENSOR), "backward": (ACTIVATION_GRAD,)}
    strips = tuple(
        Note(label=name, text=_sparkline(rows, characters, max(screen.width - _MARGIN, 1)))
        for name, families in directions.items()
        if len(rows := _in_order(comparison.rows, families)) >= _FEWEST
    )
    legend = "  ".join(f"{character} {upto}" for character, upto in zip(characters, _LEGEND, strict=True))
    if strips:
        yield Notes(title="Error along depth", notes=(*strips, Note(label="", text=legend)))


def _in_order(rows: Sequence[ComparisonRow], families: Sequence[str]) -> list[ComparisonRow]:
    return sorted((row for row in rows if row.family in families and row.compared), key=lambda row: row.index)


def _sparkline(rows: Sequence[ComparisonRow], characters: str, width: int) -> str:
    cells = min(len(rows), width)
    bounds = [len(rows) * cell // cells for cell in range(cells + 1)]
    return "".join(characters[max(map(_level, rows[start:end]))] for start, end in pairwise(bounds))


def _level(row: ComparisonRow) -> int:
    needed = math.inf if row.needed is None else row.needed
    if row.tolerance is None or row.tolerance == 0:
        # It is judged by something else than a limit on rel_l2, so only passed or not can be shown.
        return 0 if needed == 0 else (2 if row.status == "same" else len(_LEVELS))
    return sum(needed / row.tolerance > level for level in _LEVELS)
