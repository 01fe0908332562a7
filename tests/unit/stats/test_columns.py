"""The table of columns, and that what handles columns reads it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gradscope.dump.manifest.manifest import Manifest
from gradscope.instrument.statistics.core_statistics import CORE_NUMBERS
from gradscope.presentation import dump_report, rows_of, tensor_report, to_csv, to_json, to_text
from gradscope.stats import (
    COLUMNS,
    ColumnSpec,
    CoreNumbers,
    TensorStats,
    activation_stats,
    columns,
    stats_from_core,
    tensor_stats,
)
from gradscope.stats.columns import columns_of
from tests.support.report_samples import PIPE, entry, small_network, stats_of

#: Tensors that between them have every column.
EVERYTHING = (
    tensor_stats(np.array([0.0, 1.0, -3.0], np.float32), exact_quantiles=True),
    tensor_stats(np.array([1j], np.complex64)),
    tensor_stats(np.array([1, 2])),
)


def test_names_are_unique_and_sentences_are_clauses() -> None:
    names = [spec.name for spec in COLUMNS]
    assert len(set(names)) == len(names)
    assert [spec.name for spec in COLUMNS if not spec.sentence or spec.sentence.endswith(".")] == []


def test_a_column_that_is_added_to_the_table_appears_in_json_and_in_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new derived column is one line and one property."""
    line = ColumnSpec(name="sparsity", sentence="share of the elements that are zero, zeros / size", kind="share")
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, line))
    monkeypatch.setattr(TensorStats, "sparsity", property(lambda stats: stats.zeros / stats.size), raising=False)
    values = np.array([0.0, 1.5, 3.0, 0.0], np.float32)
    stats = stats_of(values)
    assert stats["sparsity"] == 0.5
    manifest = Manifest(entries=(entry("param", "w", shape=(4,), stats=stats),))
    detail = tensor_report("run.npz", manifest, "param/w", ())
    assert ["sparsity", "50.0%"] in [line.split() for line in to_text(detail, PIPE).plain.splitlines()]
    dump = dump_report("show", "run.npz", manifest, ())
    for report in (detail, dump):
        assert json.loads(to_json(report))["rows"][0]["sparsity"] == 0.5
        assert "sparsity" in to_csv(report).splitlines()[0]


def test_a_column_is_documented_by_the_table() -> None:
    assert TensorStats.rms.__doc__ == next(spec.sentence for spec in COLUMNS if spec.name == "rms")


def test_the_table_has_every_column_of_a_tensor_in_order() -> None:
    for stats in EVERYTHING:
        named = [spec for name in stats.to_json() for spec in COLUMNS if spec.base == columns.base_of(name)]
        found = [COLUMNS.index(spec) for spec in named if spec.subject == "tensor"]
        assert len(found) == len(stats.to_json())
        assert found == sorted(found)


def test_every_column_of_a_tensor_occurs() -> None:
    found = {columns.base_of(name) for stats in EVERYTHING for name in stats.to_json()}
    assert {spec.base for spec in columns_of("tensor")} - found == {"dead", "saturated"}


def test_the_core_tier_has_the_columns_that_the_table_says() -> None:
    numbers = CoreNumbers(finite=2, mean=0, std=1, rms=1, minimum=-1, maximum=1, zeros=0, nan=0, inf=0)
    found = set(stats_from_core((2,), "complex64", numbers).to_json())
    assert found == {spec.name for spec in columns_of("tensor") if spec.tier == "core"}
    assert set(CORE_NUMBERS) - {"finite"} <= found


def test_every_row_has_only_columns_of_its_family() -> None:
    rows = rows_of(small_network())
    for spec in COLUMNS:
        families = {row.family for row in rows if spec.name in row.values}
        assert families <= set(spec.families or families), spec.name
    assert {spec.name for spec in COLUMNS if spec.subject == "layer"} <= {name for row in rows for name in row.values}


def test_a_sum_lacks_the_columns_that_the_table_says() -> None:
    part = activation_stats(np.full((2, 2), 0.5, np.float32), primitive="tanh", exact_quantiles=True)
    lost = {spec.name for spec in columns_of("tensor") if spec.in_sum == "lost"}
    assert part.to_json().keys() - (part + part).to_json().keys() == lost - {"shape"}
    assert (part + part).shape == (8,)
