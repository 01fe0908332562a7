"""Tensors without statistics are read and measured; the others are unchanged."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradscope.dump.reader import open_dump
from gradscope.errors import DumpError
from gradscope.stats import TensorStats, measured, tensor_stats
from tests.support.dumps import record, some_of_everything, without_array, write


def test_a_foreign_file_gets_the_statistics_of_its_tensors(tmp_path: Path) -> None:
    arrays = {"a": np.array([[1.0, -2.0], [np.nan, 0.0]], np.float32), "b": np.arange(5), "none": np.zeros((0, 2))}
    np.savez(tmp_path / "foreign.npz", **arrays)
    with open_dump(tmp_path / "foreign.npz") as source:
        entries = {entry.name: entry for entry in measured(source).entries}
    assert entries.keys() == arrays.keys()
    for name, array in arrays.items():
        assert entries[name].stats == tensor_stats(array).to_json()


def test_every_kind_of_tensor_can_be_measured(tmp_path: Path) -> None:
    records = [replace(each, stats={}) for each in some_of_everything()]
    with open_dump(write(tmp_path / "dump.npz", records)) as source:
        entries = measured(source).entries
    assert len(entries) == len(records)
    for entry in entries:
        assert bool(entry.stats) == (entry.stored is not None)
        if entry.stats:
            stats = TensorStats.from_json(entry.stats)
            assert (stats.shape, stats.dtype) == (entry.shape, entry.dtype)


def test_what_has_statistics_or_no_tensor_stays_as_it_is(tmp_path: Path) -> None:
    records = [record("a", np.ones(3), stats={"mean": 7.0}), without_array("b", absent="disconnected")]
    with open_dump(write(tmp_path / "dump.npz", records)) as source:
        assert measured(source) == source.manifest


def test_a_damaged_tensor_is_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "foreign.npz"
    np.savez(path, a=np.arange(100.0))
    damaged = bytearray(path.read_bytes())
    damaged[400] ^= 1
    path.write_bytes(damaged)
    with open_dump(path) as source, pytest.raises(DumpError, match="its data is damaged"):
        measured(source)


@pytest.mark.slow
def test_statistics_that_are_computed_take_as_little_memory_as_those_that_are_read(tmp_path: Path) -> None:
    count = 400
    np.savez(tmp_path / "foreign.npz", **{f"block{at}/kernel": np.linspace(-at, at + 1, 8) for at in range(count)})
    with open_dump(tmp_path / "foreign.npz") as source:
        tracemalloc.start()
        try:
            manifest = measured(source)
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # As objects, those of a tensor take two kilobytes.
    assert size / count < 900
    assert manifest.entries[-1].stats == tensor_stats(np.linspace(1 - count, count, 8)).to_json()
