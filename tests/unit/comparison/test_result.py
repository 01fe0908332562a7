"""Series: the verdict and the sentence of several comparisons."""

from __future__ import annotations

import pytest

from gradscope.comparison import Comparison
from gradscope.comparison.result import Series, SeriesMember
from gradscope.presentation import SeriesReport, to_markdown
from tests.support.report_samples import different_runs, same_runs


def series(*comparisons: Comparison, **facts: object) -> Series:
    members = (SeriesMember(name=f"step_{number}", comparison=each) for number, each in enumerate(comparisons))
    return Series(members=tuple(members), **facts)  # type: ignore[arg-type]


NOTHING = Comparison(rows=())


@pytest.mark.parametrize(
    ("found", "verdict", "exit_code"),
    [
        (series(same_runs(), same_runs()), "same", 0), (series(same_runs(), different_runs()), "different", 1),
        (series(same_runs(), NOTHING), "different", 1), (series(NOTHING, NOTHING), "nothing compared", 2),
        (series(), "nothing compared", 2), (series(same_runs(), missing=("step_1",)), "different", 1),
        (series(same_runs(), extra=("step_1",)), "different", 1),
    ],
)  # fmt: skip
def test_a_series_is_the_same_where_every_comparison_is(found: Series, verdict: str, exit_code: int) -> None:
    assert (found.verdict, found.exit_code, bool(found)) == (verdict, exit_code, verdict == "same")


def test_the_sentence_counts_the_steps_that_agree() -> None:
    first = different_runs().sentence
    assert (
        series(same_runs(), different_runs(), steps=True).sentence == f"1 step the same, then `step_1` differs. {first}"
    )
    assert series(different_runs(), steps=True).sentence == f"From the first step on: `step_0` differs. {first}"
    assert (
        series(steps=True, missing=("a",)).sentence == "Nothing compared: there is no step of one name on both sides."
    )


def test_candidates_that_differ_are_named() -> None:
    sentence = series(different_runs(), same_runs(), different_runs()).sentence
    assert sentence.startswith("2 of 3 candidates not the same: `step_0`, `step_2`. Forward first differs at")


def test_every_comparison_has_a_line_and_the_first_that_differs_its_tables() -> None:
    text = to_markdown(SeriesReport(series=series(same_runs(), different_runs(), different_runs())))
    assert text.count("| `step_") == 3
    assert text.count("### activation ") == 1
    assert "- **name** step\\_1" in text
    assert len(SeriesReport(series=series(same_runs(), same_runs())).rows()) == 4
