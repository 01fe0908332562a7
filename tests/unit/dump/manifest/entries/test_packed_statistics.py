"""Packed statistics are those that were packed, value by value and type by type, however they were cut into batches."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.dump.manifest.entries.packed_statistics import (
    PackedStatistics,
    Packer,
    StatisticsColumns,
    different_names,
    numbers_of,
)
from gradscope.dump.manifest.entries.packed_values import EqualTexts, Histograms
from gradscope.dump.manifest.json_scan import MemoryBudget
from gradscope.errors import DumpError

HASHES = [f"{number:032x}" for number in range(200)]

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.floats(allow_nan=False),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(),
    st.booleans(),
    st.none(),
    st.sampled_from(HASHES),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=2),
)
HISTOGRAMS = st.one_of(
    st.fixed_dictionaries(
        {"first": st.integers(0, 5), "counts": st.lists(st.integers(0, 300) | st.integers(0, 2**64), max_size=3)}
    ),
    st.fixed_dictionaries({"first": VALUES, "counts": st.lists(VALUES, max_size=2)}),
    VALUES,
)
NAMES = ("a", "b", "c", "d", "histogram")
ROWS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.fixed_dictionaries({}, optional={name: HISTOGRAMS if name == "histogram" else VALUES for name in NAMES}),
    max_size=12,
)


def packed(rows: list[dict[str, Any]], size: int) -> list[Mapping[str, Any]]:
    packer = Packer()
    return [each for start in range(0, len(rows), size) for each in packer.pack(rows[start : start + size])]


def written(value: object) -> tuple[type, str]:
    """Returns what tells -0.0 from 0.0, and 1 from 1.0 and True."""
    return type(value), repr(value)


@settings(max_examples=25)
@given(rows=ROWS, size=st.integers(1, 5))
def test_rows_are_what_was_packed(rows: list[dict[str, Any]], size: int) -> None:
    found = packed(rows, size)
    assert found == rows
    for one, other in zip(found, rows, strict=True):
        assert [*one] == [*other]
        assert len(one) == len(other)
        assert {name: written(one[name]) for name in one} == {name: written(value) for name, value in other.items()}
        assert [*one.items()] == [*other.items()]
        assert [(one.get(name, 5), name in one) for name in NAMES] == [
            (other.get(name, 5), name in other) for name in NAMES
        ]
    for name in NAMES:
        read = [StatisticsColumns(each).values(name) for each in (found, rows)]
        assert read == [[row.get(name) for row in rows]] * 2


@pytest.mark.parametrize("size", [100, 130, 199])
def test_numbers_and_texts_of_one_length_are_kept_in_arrays(size: int) -> None:
    rows: list[dict[str, Any]] = [
        {"mean": number / 3, "nan": number, "dtype": "float32", "hash": HASHES[number]} for number in range(200)
    ]
    found = packed(rows, size)
    (table,) = {each.table for each in found if isinstance(each, PackedStatistics)}
    columns = table.columns
    assert [type(columns[name]) for name in ("mean", "nan", "dtype", "hash")] == [array, array, list, EqualTexts]
    assert found == rows


def test_counts_of_histograms_take_as_few_bits_as_they_need() -> None:
    rows: list[dict[str, Any]] = [{"histogram": {"first": 7, "counts": [largest] * 100}} for largest in (3, 300, 2**40)]
    spent: list[int] = []
    packer = Packer(spent.append)
    found = [row for each in rows for row in packer.pack([each])]
    assert found == rows
    assert [type(column) for column in packer.columns()] == [Histograms]
    assert 1_100 < sum(spent) < 1_200


@pytest.mark.parametrize("late", ["text", None, [1]])
def test_numbers_that_become_objects_are_paid_for_before_they_do(late: Any) -> None:
    budget = MemoryBudget(20_000)
    packer = Packer(budget.spend)
    packer.pack([{"a": float(number)} for number in range(1000)])
    with pytest.raises(DumpError, match="more than"):
        packer.pack([{"a": late}])
    assert [type(column) for column in packer.columns()] == [array]


@pytest.mark.parametrize("late", ["short", "ü" * 32, 7, None])
def test_a_text_of_another_length_makes_the_column_a_list(late: object) -> None:
    rows = [*({"hash": each} for each in HASHES), {"hash": late}]
    assert packed(rows, 200) == packed(rows, 300) == rows


def test_numbers_are_floats_and_none_where_they_are_missing() -> None:
    rows: list[dict[str, Any]] = [{"l2": 1.5}, {"l2": "Infinity"}, {"l2": 3}, {}]
    for statistics in (rows, packed(rows, 2)):
        assert numbers_of(statistics, "l2") == [1.5, float("inf"), 3.0, None]
        assert numbers_of(statistics[2:3], "l2") == [3.0]
        assert numbers_of([], "l2") == []
    for wrong in ("large", True, None, [1]):
        with pytest.raises(DumpError, match="expected a number"):
            numbers_of(packed([{"l2": 1.0}, {"l2": wrong}], 1), "l2")


def test_statistics_of_very_many_names_are_not_packed() -> None:
    wide: dict[str, Any] = {f"a{number}": number for number in range(300)}
    many: list[dict[str, Any]] = [{f"b{number}": 2**70} for number in range(100)]
    for rows, tables in (([wide, {"b0": 1}], 0), (many, 64)):
        packer = Packer()
        found = packer.pack(rows)
        assert found == rows
        assert sum(isinstance(each, PackedStatistics) for each in found) == tables
        columns = [[*column] for column in packer.columns() if not isinstance(column, EqualTexts)]
        assert sorted(map(str, chain(*columns))) == sorted(str(value) for row in rows for value in row.values())


@pytest.mark.parametrize("size", [1, 100])
def test_the_names_of_statistics_are_those_of_any_tensor(size: int) -> None:
    rows: list[dict[str, Any]] = [{f"a{number}": 1.0, "size": 3} for number in range(size)]
    for found in (packed(rows, size), rows):
        assert different_names(found) == {"size", *(f"a{number}" for number in range(size))}
