"""A dump is a mapping: of every tensor that was captured, and of nothing else."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscope as gs
from gradscope.dump.manifest.manifest import Entry, Manifest, RunFacts
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump, MemoryWriter
from gradscope.errors import MissingKeyError, UsageError
from gradscope.stats import tensor_stats


def record(name: str, **facts: Any) -> Record:
    array = np.ones(2)
    plain = Record(
        family="param", name=name, shape=(2,), dtype="float64", array=array, stats=tensor_stats(array).to_json(),
        site=SiteFacts(index=0),
    )  # fmt: skip
    return replace(plain, **facts)


def dump_of(*records: Record) -> gs.Dump:
    writer = MemoryWriter()
    for each in records:
        writer.add(each)
    return gs.Dump(writer.dump(writer.commit(RunFacts())))


DUMP = dump_of(
    record("kernel"),
    record("scale", alias_of="param/kernel", array=None, stats={}),
    record("unused", absent="disconnected", array=None, stats={}),
    record("summary", array=None),
)


def test_it_is_a_mapping_of_what_was_captured() -> None:
    assert isinstance(DUMP, Mapping)
    assert list(DUMP) == ["param/kernel", "param/scale", "param/summary"]
    assert len(DUMP) == 3
    assert [key in DUMP for key in (*DUMP, "param/unused", "param/none", 3)] == [True] * 3 + [False] * 3
    np.testing.assert_array_equal(DUMP["param/scale"], np.ones(2))


@pytest.mark.parametrize("key", ["param/kernels", "param/unused", "param/summary"])
def test_a_key_without_a_tensor_is_missing_as_from_any_mapping(key: str) -> None:
    with pytest.raises(KeyError):
        DUMP[key]
    with pytest.raises(UsageError):
        DUMP[key]
    assert DUMP.get(key) is None


def test_the_error_is_a_sentence_with_the_nearest_name() -> None:
    with pytest.raises(MissingKeyError) as missing:
        DUMP["param/kernal"]
    assert missing.value.message == "the dump has no entry param/kernal"
    assert str(missing.value).startswith("the dump has no entry param/kernal (did you mean param/kernel")


class Counting(MemoryDump):
    """A dump that counts how often an entry is looked up."""

    lookups = 0

    def entry(self, key: str) -> Entry:
        self.lookups += 1
        return super().entry(key)


def test_membership_and_length_walk_the_entries_once() -> None:
    source = Counting(DUMP.manifest, {})
    dump = gs.Dump(source)
    assert "param/kernel" in dump
    walked = source.lookups
    assert ("param/kernel" in dump, "param/none" in dump, len(dump)) == (True, False, 3)
    assert source.lookups == walked == len(DUMP.manifest.entries)


def test_closing_closes_what_it_was_read_from(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", w=np.ones(2))
    with gs.load(tmp_path / "one.npz") as dump:
        assert dump.path == str(tmp_path / "one.npz")
        read = dump["tensor/w"]
    np.testing.assert_array_equal(read, np.ones(2))
    assert list(dump) == ["tensor/w"]
    with pytest.raises(UsageError, match=r"one\.npz is closed"):
        dump["tensor/w"]


def test_an_empty_dump_is_an_empty_mapping() -> None:
    empty = gs.Dump(MemoryDump(Manifest(entries=()), {}))
    assert (dict(empty), len(empty), empty.loss, empty.origins) == ({}, 0, None, ())


def test_a_traceback_has_what_to_do() -> None:
    with pytest.raises(gs.UsageError) as refused:
        raise gs.UsageError("it holds a run", hint="replace it with force=True")
    shown = "".join(traceback.format_exception(refused.value))
    assert "UsageError: it holds a run\nhint: replace it with force=True" in shown


@pytest.mark.parametrize(
    ("other", "kind"), [({"g": 1}, "a dict"), ("new.npz", "the path new.npz"), (None, "a NoneType")]
)
def test_only_dumps_and_runs_are_compared(other: Any, kind: str) -> None:
    empty = gs.Dump(MemoryDump(Manifest(entries=()), {}))
    for pair in ((empty, other), (other, empty)):
        with pytest.raises(gs.UsageError, match=f"compare takes dumps and runs, not {kind}"):
            gs.compare(*pair)
