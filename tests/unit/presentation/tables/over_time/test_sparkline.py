"""Sparklines: one character for a number, the lowest and the highest for the ends of the range."""

from __future__ import annotations

import math

import pytest

from gradscope.presentation.tables.over_time.sparkline import sparkline


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([1.0], "▅"),
        ([2.0, 2.0], "▅▅"),
        ([-2.0, -2.0], "▅▅"),
        ([0.0, -0.0], "▁▁"),
        ([0.0, math.nan, math.inf], "▁ !"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([7, 0], "█▁"),
        ([1e-8, 1e-4, 1.0], "▁▅█"),
        ([-1e-8, 1e-4, 1.0], "▁▁█"),
        ([1.0, math.nan, 2.0], "▁ █"),
        ([1.0, math.inf, 2.0, math.nan], "▁!█"),
        ([-1e308, 1e308], "▁█"),
        ([7.0, 7.000001, 7.0], "▅▅▅"),
        ([7.0, 7.0001, 7.0], "▁█▁"),
        ([math.nan], ""),
    ],
)
def test_a_series_is_a_line(values: list[float], shown: str) -> None:
    assert sparkline(values, 8, unicode=True) == shown


def test_several_numbers_share_a_character_where_there_is_no_room() -> None:
    assert sparkline([0, 0, 1, 1, 2, 2, 3, 3], 4, unicode=True) == "▁▃▆█"


def test_without_unicode_it_is_ascii() -> None:
    assert sparkline([0, 7], 8, unicode=False).isascii()
