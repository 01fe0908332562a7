"""Trends on one screen: repeated blocks share a line, and one that went the other way has its own."""

from __future__ import annotations

import numpy as np

from gradscope.history.history_rows import TensorRow
from gradscope.history.tensor_trends import Trend
from gradscope.presentation import to_text
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.render.text_layout import lay_out
from gradscope.presentation.reports.runs.run_report import RunReport
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


def test_each_family_has_lines_whatever_an_optimizer_gathers() -> None:
    slots = [
        _row(name, 1e-9 * np.power(90.0 - at, STEPS), family=f"slot/{'mn'[at % 2]}u")
        for at, name in enumerate("cdefgh")
    ]
    rows = [*slots, _row("a", 1.0 + STEPS, family="activation"), _row("w", 1.0 + STEPS), _row("v", 1.0 - 0.1 * STEPS)]
    names = [str(line.cells[0]) for line in folded_trends(rows, 6, unicode=True).lines]
    assert names == ["activation/a", "update/w", "update/v", "slot/mu/c", "slot/nu/d", "slot/mu/e"]
    assert len(folded_trends(rows, 2, unicode=True).lines) == 2


def test_a_tensor_that_ends_as_nan_is_shown_however_little_it_changed() -> None:
    rows = [*(_row(f"{letter}", 0.01 * 0.4**STEPS) for letter in "abcd"), _row("e", 1.0 + 0 * STEPS, nan_at_end=True)]
    assert [line.cells[0] for line in folded_trends(rows, 2, unicode=True).lines] == ["update/e", "update/a"]


def test_a_narrow_terminal_keeps_the_curve_before_the_slope() -> None:
    steps = np.arange(24)
    trend = Trend.of(steps, 1.234e-5 * np.power(0.8, steps), np.zeros(24))
    tensor = TensorRow(family="slot/nu", name="blocks/0/attention/norm1/scale", shape=(4,))
    report = RunReport(
        command="show", path="run", taken=24, alarms=(),
        steps={"step": steps, "grad_norm": np.ones(24), "update_norm": np.ones(24)},
        losses={"step": steps, "loss": np.ones(24)}, overview=True,
        trends=(TrendRow(tensor=tensor, column="l2", trend=trend),),
    )  # fmt: skip
    text = to_text(report, Screen(width=80)).plain
    assert "over time\n" in text
    assert "slope" not in text.partition("hidden")[0]


def _row(name: str, values: np.ndarray, *, nan_at_end: bool = False, family: str = "update") -> TrendRow:
    broken = np.zeros(len(values))
    broken[-1] = nan_at_end
    trend = Trend.of(STEPS[: len(values)], values, broken)
    return TrendRow(tensor=TensorRow(family=family, name=name, shape=(4, 4)), column="ratio", trend=trend)


def _names(rows: list[TrendRow]) -> list[str]:
    return [str(line.cells[0]) for line in folded_trends(rows, 9, unicode=True).lines]
