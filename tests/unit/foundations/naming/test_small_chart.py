"""A small chart: points where the logarithms are, what cannot be drawn left out, labels as text, few bytes."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

from gradscope.naming.small_chart import SmallChart

SVG = "{http://www.w3.org/2000/svg}"


def points(chart: SmallChart) -> list[list[tuple[float, float]]]:
    lines = ET.fromstring(chart.svg()).findall(f"{SVG}polyline")
    return [[tuple(map(float, each.split(","))) for each in line.attrib["points"].split()] for line in lines]  # type: ignore[misc]


def test_equal_ratios_are_equal_distances() -> None:
    ((first, second, third),) = points(SmallChart(title="t", lines={"a": [1.0, 10.0, 100.0]}))
    assert first[1] - second[1] == second[1] - third[1] > 0
    assert second[0] - first[0] == third[0] - second[0] > 0


def test_what_has_no_logarithm_is_left_out() -> None:
    chart = SmallChart(title="t", lines={"a": [1.0, 0.0, None, -1.0, math.nan, math.inf, 2.0]})
    assert len(points(chart)[0]) == 2
    assert SmallChart(title="t", lines={"a": [0.0, math.nan, 1.0]}).svg() == ""


def test_a_long_line_keeps_its_peak_in_few_points() -> None:
    values = [1.0] * 100_000
    values[54_321] = 1e6
    chart = SmallChart(title="t", lines={"a": values})
    (line,) = points(chart)
    assert min(y for _, y in line) < 20
    assert len(chart.svg()) < 6_000


def test_labels_are_text() -> None:
    svg = SmallChart(title="<b>\u202e", lines={"</svg><script>": [1.0, 2.0]}).svg()
    assert "&lt;b&gt;\\u202e" in svg
    assert re.findall("<script|<b>", svg) == []
