"""JUnit's XML of a comparison: a case for each tensor, in the schema that CI systems read."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence
from gradscope.comparison.diagnosis.runs.run_stages import RunRow
from gradscope.comparison.result import Series, SeriesMember
from gradscope.errors import UsageError
from gradscope.presentation import ComparisonReport, RunDivergenceReport, SeriesReport
from gradscope.presentation.render.formats import Report, to_junit
from tests.support.report_samples import compared, different_runs, report_of, same_runs, small_network

#: What Jenkins' schema junit-10.xsd lets an element have: its attributes that have to be there, the others, and what
#: it contains.
SCHEMA: Final[dict[str, tuple[set[str], set[str], set[str]]]] = {
    "testsuites": (set(), {"name", "tests", "failures", "errors", "time"}, {"testsuite"}),
    "testsuite": ({"name", "tests"}, {"failures", "errors", "skipped", "time"}, {"testcase", "system-out"}),
    "testcase": ({"name"}, {"classname", "time"}, {"failure", "error", "skipped"}),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"message"}, set()),
    "system-out": (set(), set(), set()),
}


def tree_of(report: Report) -> ET.Element:
    """Returns the XML of a report, which has the schema and whose counts are those of its cases."""
    root = ET.fromstring(to_junit(report))
    for each in root.iter():
        required, others, children = SCHEMA[each.tag]
        assert required <= set(each.attrib) <= required | others
        assert {child.tag for child in each} <= children
    for each in (root, *root.iter("testsuite")):
        found = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
        for attribute, tag in found.items():
            assert int(each.get(attribute, "0")) == len(list(each.iter(tag))) or attribute not in each.attrib
    return root


def ended(root: ET.Element) -> dict[str, str]:
    return {
        f"{case.get('classname')}/{case.get('name')}": next((f"{each.tag}: {each.get('message')}" for each in case), "")
        for case in root.iter("testcase")
    }


def test_a_tensor_is_a_case_that_fails_where_it_differs() -> None:
    root = tree_of(ComparisonReport(comparison=different_runs()))
    assert len(ended(root)) == len(different_runs().rows)
    assert {each for each in ended(root).values() if each}
    assert next(root.iter("system-out")).text == different_runs().sentence
    assert not any(ended(tree_of(ComparisonReport(comparison=same_runs()))).values())


def test_what_differs_has_its_reason_and_its_line_and_what_does_not_count_is_skipped() -> None:
    differs = replace(compared("activation", 'a<b>\x00\ufffe&"', 0.5), likely="is transposed", source="net.py:3")
    alone = ComparisonRow(name="head", family="param", status="extra", index=9, counts=False)
    found = ended(tree_of(ComparisonReport(comparison=Comparison(rows=(differs, alone)))))
    assert found['activation/a<b>\\x00\\ufffe&"'].startswith("failure: likely it is transposed; ")
    assert found['activation/a<b>\\x00\\ufffe&"'].endswith("(net.py:3)")
    assert found["param/head"] == "skipped: only in the candidate, not counted"


def test_a_comparison_of_nothing_is_an_error_and_no_success() -> None:
    for report in (
        ComparisonReport(comparison=Comparison(rows=())),
        RunDivergenceReport(divergence=RunDivergence(steps=(), largest=(), first_step=None, rows=())),
        SeriesReport(series=Series(members=())),
    ):
        assert [each.partition(":")[0] for each in ended(tree_of(report)).values()] == ["error"]


def test_a_series_has_a_suite_for_each_comparison_and_fails_where_a_run_lacks_a_step() -> None:
    members = tuple(SeriesMember(name=name, comparison=same_runs()) for name in ("1", "2"))
    root = tree_of(SeriesReport(series=Series(members=members, steps=True, missing=("3",))))
    assert [each.get("name") for each in root] == ["1", "2", "series"]
    assert ended(root)["step/3"] == "failure: only in the reference"


def test_two_runs_are_tested_at_the_first_step_that_differs() -> None:
    rows = (
        RunRow(name="w", family="param", status="same", bound=0.0),
        RunRow(name="w", family="update", status="different", bound=0.5, ref=1.0, cand=1.5),
    )
    root = tree_of(RunDivergenceReport(
        divergence=RunDivergence(steps=(0, 5), largest=(0.0, 0.5), first_step=5, rows=rows)
    ))  # fmt: skip
    assert [each.get("name") for each in root] == ["step 5"]
    assert ended(root) == {"param/w": "", "update/w": "failure: `update/w`, rel_l2 at least 0.5"}


def test_what_is_no_comparison_has_no_tests() -> None:
    with pytest.raises(UsageError, match="nothing tested"):
        to_junit(report_of(small_network()))
