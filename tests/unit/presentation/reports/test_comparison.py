"""The report of a comparison: what differs, and what would make it pass."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.presentation import ComparisonReport, to_csv, to_json, to_markdown, to_text
from gradscope.presentation.reports.comparing.comparison import rounded_up
from gradscope.presentation.reports.comparing.comparison_overview import overview_tables
from tests.support.report_samples import PIPE, TERMINAL, compared, different_runs, same_runs

MISSING = ComparisonRow(name="head/bias", family="param", status="missing", index=9, why="not in the candidate")


def text_of(*rows: ComparisonRow, everything: bool = False, worst_first: bool = False) -> str:
    comparison = Comparison(rows=rows)
    return to_text(ComparisonReport(comparison=comparison, everything=everything, worst_first=worst_first), PIPE).plain


def test_the_verdict_comes_first_and_in_colour() -> None:
    for comparison, colour in ((different_runs(), "red"), (same_runs(), "green"), (Comparison(rows=()), "yellow")):
        text = to_text(ComparisonReport(comparison=comparison), PIPE)
        assert text.plain.startswith(f"{comparison.verdict}  {comparison.sentence}\n")
        assert str(text.spans[0].style) == colour


def test_rows_that_are_the_same_are_counted_and_shown_on_request() -> None:
    rows = (compared("param", "w", 0.0), compared("param", "v", 1.0))
    assert "\nw " not in text_of(*rows)
    assert "same        1 param (--all shows them)\n" in text_of(*rows)
    assert "\nw " in text_of(*rows, everything=True)
    assert "--all" not in text_of(*rows, everything=True)


def test_what_neither_run_has_is_not_counted_among_the_tensors_that_are_the_same() -> None:
    neither = ComparisonRow(name="label", family="input_grad", status="same", index=0, matched_by="name")
    assert " 1 param, and 1 that neither run has (--all shows them)\n" in text_of(
        compared("param", "w", 0.0), compared("param", "v", 1.0), neither
    )


def test_rows_of_statistics_alone_have_the_least_rel_l2_and_say_once_why_no_more_is_known() -> None:
    rows = [
        replace(compared("param", name, 1e-2), metrics={"norm_ratio": 1.01}, why="judged by its statistics: and so on")
        for name in "wv"
    ]
    heading, first = text_of(*rows).partition("param (2 of 2)\n")[2].splitlines()[:2]
    assert heading.split() == ["name", "status", "rel_l2", "at", "least", "tolerance", "norm_ratio"]
    assert first.split() == ["w", "different", "0.0100", "1.00e-04", "1.01"]
    assert "Reasons" not in text_of(*rows)
    assert "statistics  2 rows of which a dump has no tensor, so that only the least rel_l2 is known" in text_of(*rows)
    markdown = to_markdown(ComparisonReport(comparison=Comparison(rows=tuple(rows))))
    assert "| name | status | rel\\_l2 at least | tolerance | norm\\_ratio |" in markdown
    assert "rel_l2 at least" not in text_of(compared("param", "w", 1e-2))


def test_a_floor_is_said_to_be_a_norm_beside_an_error_that_is_relative() -> None:
    row = replace(compared("param_grad", "w", 1e-2), metrics={"rel_l2": 1e-2, "floor": 3e-6})
    assert "  floor of l2(d)\n" in text_of(row)
    assert "3.00e-06" in text_of(row)


def test_a_reason_of_several_rows_is_given_once() -> None:
    rows = [replace(compared("param", name, 1.0), likely="is 0.5 times the reference's") for name in "vwxyz"]
    missing = [replace(MISSING, name=name) for name in ("head/bias", "head/scale")]
    likely = "likely  param/v, param/w, param/x and 2 more, each of which is 0.5 times the reference's\n"
    assert f"Reasons\n{likely}\n" in text_of(*rows)
    assert "\nmissing  param/head/bias and param/head/scale: not in the candidate\n" in text_of(rows[0], *missing)
    assert "likely   param/v is 0.5 times the reference's\n" in text_of(rows[0], MISSING)


def test_a_composite_comes_before_its_parts() -> None:
    names = [line.split()[0] for line in to_text(ComparisonReport(comparison=different_runs()), PIPE).plain.splitlines()
             if line.startswith("block1")]  # fmt: skip
    assert names[:4] == ["block1", "block1/conv", "block1/bn", "block1/relu"]


def test_worst_first_begins_with_what_no_tolerance_would_pass() -> None:
    hopeless = replace(compared("param", "nan", 1e-3), needed=math.inf)
    rows = (compared("param", "small", 1e-3), hopeless, compared("param", "large", 1e-2))
    lines = text_of(*rows, worst_first=True).partition("rel_l2  tol")[2].splitlines()[1:4]
    assert [line.split()[0] for line in lines] == ["nan", "large", "small"]


def test_the_worst_rows_are_not_hidden_by_names_on_one_side_only() -> None:
    rows = (*(replace(MISSING, name=f"lost{number}") for number in range(9)), compared("param", "w", 1e-2))
    *_, table = overview_tables(Comparison(rows=rows), 4)
    assert [line.cells[0] for line in table.lines] == ["param/w", "param/lost0", "param/lost1", "param/lost2"]
    lines = text_of(*rows, worst_first=True).partition("rel_l2  tol")[2].splitlines()[1:3]
    assert [line.split()[0] for line in lines] == ["w", "lost0"]


def test_values_stand_before_gradients() -> None:
    rows = (compared("param_grad", "w", 1.0), compared("activation_grad", "a", 1.0), compared("activation", "a", 1.0),
            compared("param", "w", 1.0), compared("other", "x", 1.0))  # fmt: skip
    titles = [line.split()[0] for line in text_of(*rows).splitlines() if line.endswith("(1 of 1)")]
    assert titles == ["activation", "param", "other", "activation_grad", "param_grad"]


def test_the_tolerance_that_would_pass_suffices_for_rows_that_passed_by_a_wider_one() -> None:
    rows = (compared("param", "w", 2e-4, tolerance=1e-4), compared("param", "half", 1.91e-2, tolerance=2e-2))
    assert "would pass  --tol 2.0e-2 is the smallest tolerance on rel_l2 for all rows\n" in text_of(*rows)


def test_no_tolerance_is_proposed_that_faults_would_pass() -> None:
    rows = (compared("param", "w", 0.51), compared("param", "v", 2e-3))
    assert "would pass  no --tol: 1 row with a rel_l2 of up to 5.1e-1, and so large a one hides faults\n" in text_of(
        *rows
    )
    # A row that is judged by a wider tolerance shows what a tolerance may be here.
    narrow = compared("param_grad", "w", 0.4, tolerance=0.5)
    assert "--tol 4.0e-1 is the smallest tolerance" in text_of(compared("param", "v", 0.2, tolerance=0.1), narrow)


def test_rows_that_no_tolerance_passes_are_counted_and_explained() -> None:
    hopeless = replace(compared("param", "v", 1e-3), needed=math.inf, why="3 positions finite on one side only")
    text = text_of(compared("param", "w", 2e-3), hopeless)
    assert "different  param/v: 3 positions finite on one side only\n" in text
    assert "--tol 2.0e-3 is the smallest tolerance on rel_l2 for all rows but 1\n" in text
    assert "never passes  1 row, at any tolerance\n" in text


def test_a_name_on_one_side_only_is_shown_with_how_to_allow_it() -> None:
    text = text_of(compared("param", "w", 0.0), MISSING)
    assert "missing  param/head/bias: not in the candidate\n" in text
    assert "--allow-missing REGEX lets pass what one dump lacks, here 1\n" in text
    assert "--tol" not in text


def test_a_tolerance_alone_is_not_said_to_pass_where_names_are_on_one_side_only() -> None:
    text = text_of(compared("param", "w", 2e-3), MISSING)
    assert "--tol 2.0e-3 is the smallest tolerance on rel_l2 for all rows that both dumps have\n" in text


def test_what_was_allowed_to_be_missing_needs_nothing_to_pass() -> None:
    assert "--allow-missing" not in text_of(compared("param", "w", 0.0), replace(MISSING, counts=False))


def test_a_reason_that_repeats_the_table_is_left_out() -> None:
    assert "Reasons" not in text_of(compared("param", "w", 1e-2))


@pytest.mark.parametrize(
    ("needed", "text"), [(1.2e-3, "1.2e-3"), (2e-3, "2.0e-3"), (1.2000001e-3, "1.3e-3"), (9.91e-5, "1.0e-4")]
)
def test_a_tolerance_is_rounded_up(needed: float, text: str) -> None:
    assert rounded_up(needed) == text


def test_json_and_csv_have_every_row() -> None:
    report = ComparisonReport(comparison=different_runs())
    found = json.loads(to_json(report))
    assert list(found) == [
        "schema", "command", "verdict", "sentence", "first_divergence", "rows", "provenance_differences",
    ]  # fmt: skip
    in_csv = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert len(found["rows"]) == len(in_csv) == len(different_runs().rows)
    assert (in_csv[2]["status"], in_csv[2]["rel_l2"]) == ("missing", "")


@pytest.mark.parametrize(("command_line", "said"), [(True, "(not given)"), (False, "(unknown)")])
def test_an_option_that_a_dump_was_not_given_is_not_unknown(command_line: bool, said: str) -> None:
    differing = [{"field": "checkpoint", "cand": "weights.npz"}, {"field": "seed", "cand": 0}]
    if command_line:
        differing += [{"field": "argv", "ref": ["gradscope", "dump"], "cand": ["gradscope", "dump", "--checkpoint"]}]
    comparison = replace(different_runs(), provenance_differences=tuple(differing))
    text = to_text(ComparisonReport(comparison=comparison, verbose=True), PIPE).plain
    assert f"{said} -> weights.npz" in text
    assert "(unknown) -> 0" in text


def test_names_of_one_side_that_do_not_count_are_no_rows_of_an_overview() -> None:
    allowed = tuple(replace(MISSING, name=f"lost{number}", counts=False) for number in range(3))

    def overview(*rows: ComparisonRow) -> str:
        return to_text(ComparisonReport(comparison=Comparison(rows=rows), overview=True), TERMINAL).plain

    only = overview(compared("param", "w", 0.0), *allowed)
    assert "not counted  3 missing (--full has the reasons)\n" in only
    assert "same         1 param (--all shows them)\n" in only
    assert "lost" not in only
    assert "lost" not in overview(compared("param", "w", 1.0), *allowed)
    assert "param/head/bias" in overview(compared("param", "w", 1.0), MISSING, *allowed)
    assert "not counted" not in overview(compared("param", "w", 1.0), MISSING)


def test_names_of_one_side_that_do_not_count_are_behind_all_else_in_a_pipe() -> None:
    allowed = tuple(replace(MISSING, name=f"lost{number}", counts=False) for number in range(3))
    rows = (*allowed, compared("param", "w", 1.0), replace(MISSING, name="gone"), compared("input", "x", 0.0))
    text = text_of(*rows)
    lines = text.splitlines()
    at = [
        next(number for number, line in enumerate(lines) if line.startswith(word)) for word in ("w  ", "gone", "lost0")
    ]
    assert at == sorted(at)
    counted, behind = lines.index("param (2 of 5)"), lines.index("param, not counted (3 of 5)")
    assert counted < at[1] < lines.index(next(each for each in lines if each.startswith("one side only"))) < behind
    complete = text_of(*rows, everything=True)
    assert "not counted" not in complete
    assert [word in complete for word in ("lost0", "lost2", "gone", "w  ", "x  ")] == [True] * 5
    report = ComparisonReport(comparison=Comparison(rows=rows))
    assert len(json.loads(to_json(report))["rows"]) == len(rows)
