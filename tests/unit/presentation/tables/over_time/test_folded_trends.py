"""Trends on one screen: repeated blocks share a line, and one that went the other way has its own."""

from __future__ import annotations

import numpy as np

from gradscope.history.history_rows import TensorRow
from gradscope.history.tensor_trends import Trend
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.render.text_layout import lay_out
from gradscope.presentation.tables.over_time.folded_trends import folded_trends
from gradscope.presentation.tables.over_time.run_tables import TrendRow

STEPS = np.arange(5)


def test_the_block_that_grew_while_the_others_shrank_has_a_line_of_its_own() -> None:
    rows = [_row(f"layers/{at}/wq", 0.01 * (1.5 if at == 4 else 0.4) ** STEPS) for at in range(5)]
    assert _names(rows) == ["update/layers/[0..3]/wq", "update/layers/4/wq"]
    assert _names(rows[:4]) == ["update/layers/[0..3]/wq"]


def test_a_block_that_moved_by_less_than_a_factor_of_two_stays_with_the_others() -> None:
    rows = [_row(f"layers/{at}/wq", 0.01 * (1.1 if at == 4 else 0.4) ** STEPS) for at in range(5)]
    assert _names(rows) == ["update/layers/[0..4]/wq"]


def test_updates_that_a_warm_up_begins_with_zero_grow() -> None:
    rows = [_row("slow", 0.01 * 0.5**STEPS), _row("fast", 0.001 * STEPS**3)]
    assert _names(rows) == ["update/fast", "update/slow"]


def test_a_line_of_several_is_that_of_one_that_ends_as_nan() -> None:
    rows = [_row(f"layers/{at}/wq", 0.01 * 0.4**STEPS, nan_at_end=at == 1) for at in range(4)]
    (line,) = folded_trends(rows, 9, unicode=True).lines
    assert np.isnan(line.cells[3])
    assert str(line.cells[-1]).endswith("!")


def test_eighty_columns_have_the_first_the_last_and_the_slope_of_long_names() -> None:
    rows = [_row(f"layers/{at}/ln{part}", (1 + at) * 1e-4 * 0.4**STEPS) for at in range(4) for part in (1, 2)]
    text = lay_out(folded_trends(rows, 9, unicode=True), Screen(width=80)).plain
    heading, line = text.splitlines()[1:3]
    assert heading.split() == ["tensor", "statistic", "first", "last", "slope", "over", "time"]
    assert line.split()[:2] == ["update/layers/[0..3]/ln[1..2]", "ratio"]


def _row(name: str, values: np.ndarray, *, nan_at_end: bool = False) -> TrendRow:
    broken = np.zeros(len(values))
    broken[-1] = nan_at_end
    trend = Trend.of(STEPS[: len(values)], values, broken)
    return TrendRow(tensor=TensorRow(family="update", name=name, shape=(4, 4)), column="ratio", trend=trend)


def _names(rows: list[TrendRow]) -> list[str]:
    return [str(line.cells[0]) for line in folded_trends(rows, 9, unicode=True).lines]
