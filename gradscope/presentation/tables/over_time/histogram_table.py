"""This table has a tensor's histograms over the steps of a run: one line for each, all on the same axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from gradscope.history.value_histograms import ValueHistogram
from gradscope.presentation.tables.numbers import number
from gradscope.presentation.tables.over_time.sparkline import sparkline
from gradscope.presentation.tables.table import Column, Line, Table

_WIDTH: Final = 60


def histogram_table(histograms: Mapping[int, ValueHistogram], *, unicode: bool) -> Table:
    """Returns the table: negative numbers on the left, the largest magnitude outermost, zeros between both signs.

    Args:
        histograms: The histograms by step, in order.
        unicode: Whether characters beyond ASCII can be shown.
    """
    sides = [_side(histograms, sign) for sign in (-1, 0, 1)]
    axis = [number for side in sides for number in side]
    lines = tuple(
        Line(cells=(str(step), _strip(each, axis, unicode=unicode)), keys=()) for step, each in histograms.items()
    )
    note = f"from left to right: {', '.join(map(_extent, filter(None, sides)))}; two bins for each octave"
    return Table(
        title=f"Histograms ({len(lines):,})",
        columns=(Column(heading="step", kind="name"), Column(heading="", kind="text")),
        lines=lines, in_order=False, notes=(note,) if axis else (),
    )  # fmt: skip


def _side(histograms: Mapping[int, ValueHistogram], sign: int) -> list[int]:
    """Returns the numbers of the bins of one sign, from the first that has an element at any step to the last."""
    found = {number for each in histograms.values() for number in each.bins if _sign(number) == sign}
    return list(range(min(found), max(found) + 1)) if found else []


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _strip(histogram: ValueHistogram, axis: list[int], *, unicode: bool) -> str:
    counts = dict(zip(histogram.bins, histogram.counts, strict=True))
    cells = min(len(axis), _WIDTH)
    bounds = [len(axis) * cell // cells for cell in range(cells + 1)] if cells else []
    sums = [sum(counts.get(number, 0) for number in axis[start:end]) for start, end in pairwise(bounds)]
    return sparkline([float(each) if each else math.nan for each in sums], _WIDTH, unicode=unicode)


def _extent(side: list[int]) -> str:
    if side == [0]:
        return "0"
    ends = ValueHistogram(bins=(side[0], side[-1]), counts=(1, 1))
    return f"{number(float(ends.lower[0]))} to {number(float(ends.upper[-1]))}"
