"""What is shown of layers that were run by themselves, and of those that could not be judged."""

from __future__ import annotations

from dataclasses import replace

from gradscope.comparison import Comparison
from gradscope.comparison.follow_ups.isolation import Isolation, LeftOut, LocalRow
from gradscope.presentation import to_text
from gradscope.presentation.render.document import lay_out_document
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.comparing.isolation import IsolationReport
from tests.support.report_samples import compared

WHY = "the reference has no such activation"


def test_values_that_repeat_and_were_not_judged_for_one_reason_are_one_line() -> None:
    left_out = [LeftOut(name=f"core[{block}].{output}", why=WHY) for block in range(4) for output in range(3)]
    others = (LeftOut(name="core[4].0", why="it is a view"), LeftOut(name="head", why=WHY))
    isolation = Isolation(rows=(), left_out=(*left_out, *others))
    report = IsolationReport(comparison=Comparison(rows=()), isolation=isolation)
    screen = Screen(width=100)
    lines = lay_out_document(report.document(screen), screen).plain.splitlines()
    assert [line.removeprefix("not judged  ") for line in lines if line.startswith("not judged")] == [
        f"core[0..3].[0..2] (12 of them): {WHY}",
        f"head: {WHY}",
        "core[4].0: it is a view",
    ]


def test_tolerances_have_three_digits_and_rules_are_as_they_were_written() -> None:
    judged = {
        "vjp": replace(compared("activation_grad", "b", 0.5, tolerance=0.0004523912), status="different"),
        "forward": replace(compared("activation", "b", 0.5), status="different", tolerance=None, rule="max_abs < 0.1"),
    }
    isolation = Isolation(rows=(LocalRow(name="b", **judged),))
    report = IsolationReport(comparison=Comparison(rows=()), isolation=isolation, everything=True)
    text = to_text(report, Screen(width=200)).plain
    assert "  max_abs < 0.1 " in text
    assert "  4.52e-04 " in text
