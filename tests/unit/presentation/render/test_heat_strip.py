"""Heat strips: the error along depth in a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.presentation import Screen
from gradscope.presentation.render.heat_strip import heat_strips
from tests.support.report_samples import compared

TERMINAL = Screen(width=80)
LEVELS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)


def strip(*rows: ComparisonRow, screen: Screen = TERMINAL) -> dict[str, str]:
    return {note.label: note.text for notes in heat_strips(Comparison(rows=rows), screen) for note in notes.notes}


def layers(*errors: float, family: str = "activation") -> list[ComparisonRow]:
    return [compared(family, f"layer{number}", error, index=number) for number, error in enumerate(errors)]


def test_each_layer_has_a_level_by_its_tolerance() -> None:
    found = strip(*layers(*LEVELS, 0.0, 0.0))
    assert found == {"forward": "·▁▃▅▆█··", "": "· equal  ▁ 0.1  ▃ 1  ▅ 10  ▆ 100  █ more times the tolerance"}


def test_an_ascii_terminal_gets_ascii() -> None:
    found = strip(*layers(*LEVELS, 0.0, 0.0), screen=Screen(width=80, unicode=False))
    assert found["forward"] == ".-=+*#.."


def test_both_directions_run_in_execution_order() -> None:
    rows = layers(0, 0, 0, 0, 0, 0, 0, 1), layers(1, 0, 0, 0, 0, 0, 0, 0, family="activation_grad")
    found = strip(*reversed(rows[0]), *reversed(rows[1]))
    assert (found["forward"], found["backward"]) == ("·······█", "█·······")


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_strip_fits_and_shows_the_worst_of_neighbours(width: int) -> None:
    errors = [0.0] * 1000
    errors[617] = 1.0
    found = strip(*layers(*errors), screen=Screen(width=width))["forward"]
    assert len(found) <= width - len("backward  ")
    assert found.count("█") == 1
    assert found.index("█") == pytest.approx(0.617 * len(found), abs=1)


def test_a_row_without_a_limit_on_rel_l2_has_passed_or_not() -> None:
    rows = [replace(row, tolerance=None, rule="bit_equal") for row in layers(0.0, 1e-9, 1.0, *[0.0] * 5)]
    assert strip(*rows)["forward"] == "·▃█·····"


def test_there_is_none_without_depth_or_terminal() -> None:
    assert strip(*layers(*LEVELS)) == {}
    assert strip(*layers(*[1.0] * 9), screen=Screen()) == {}
