"""Laws of reports, whatever the numbers and whatever the names."""

from __future__ import annotations

import csv
import io
import math

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gradscope.dump.manifest.manifest import Manifest
from gradscope.naming import printable
from gradscope.presentation import Screen, to_csv
from gradscope.presentation.render.outline import outline
from gradscope.presentation.reports.comparing.comparison import rounded_up
from gradscope.presentation.tables.numbers import Range, number, number_column, share
from tests.support.report_samples import entry, report_of, text_of

# Short of the largest: rounded up to three digits, it is more than a float holds.
FLOATS = st.floats(min_value=-1.79e308, max_value=1.79e308)
NAMES = st.lists(st.text(alphabet="ab/[0]\x1b\u202e層|`,", max_size=30), min_size=1, max_size=8, unique=True)
PATHS = st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join), max_size=30)


@given(FLOATS)
def test_a_number_parses_back_to_within_one_percent_and_is_zero_only_for_zero(value: float) -> None:
    text = number(value)
    assert math.isclose(float(text), value, rel_tol=0.01)
    assert (float(text) == 0) == (value == 0)


@given(st.lists(FLOATS, min_size=1))
def test_a_column_has_its_numbers_in_one_width(values: list[float]) -> None:
    texts = number_column(values)
    assert len({len(text) for text in texts}) == 1
    for text, value in zip(texts, values, strict=True):
        assert math.isclose(float(text), value, rel_tol=0.01)
        assert (float(text) == 0) == (value == 0)


@given(st.lists(st.tuples(FLOATS, FLOATS).map(sorted), min_size=1))
def test_the_ends_of_a_range_parse_back(ends: list[list[float]]) -> None:
    for text, (low, high) in zip(number_column([Range(*each) for each in ends]), ends, strict=True):
        ends_shown = [float(end) for end in text.split("..")]
        shown_low, shown_high = ends_shown[0], ends_shown[-1]
        assert math.isclose(shown_low, low, rel_tol=0.01)
        assert math.isclose(shown_high, high, rel_tol=0.01)


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_nothing_or_all_only_when_it_is(value: float) -> None:
    assert (share(value) == "0%") == (value == 0)
    assert (share(value) == "100%") == (value == 1)


@given(PATHS)
def test_an_outline_keeps_every_name_and_the_order(names: list[str]) -> None:
    above: list[str] = []
    found: list[str] = []
    for item in outline(names):
        above[item.depth :] = [item.label]
        if item.position is not None:
            assert item.position == len(found)
            found.append("/".join(above))
    assert found == names


@given(NAMES, st.booleans())
def test_whatever_the_names_lines_fit_the_terminal(names: list[str], unicode: bool) -> None:
    entries = tuple(entry("activation", name, index=index) for index, name in enumerate(names))
    text = text_of(Manifest(entries=entries), Screen(width=80, unicode=unicode))
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert all(char.isprintable() or char == "\n" for char in text)
    assert unicode or text.isascii()


@given(NAMES)
def test_csv_reads_back_one_row_for_each_name(names: list[str]) -> None:
    manifest = Manifest(entries=tuple(entry("param", name) for name in names))
    rows = list(csv.DictReader(io.StringIO(to_csv(report_of(manifest)))))
    assert [row["name"] for row in rows] == [printable(name) for name in names]


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_the_tolerance_to_paste_suffices_and_is_no_more_than_needed(needed: float) -> None:
    assert needed <= float(rounded_up(needed)) <= needed * 1.1
