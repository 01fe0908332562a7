"""A dump of several processes: each writes a file, process 0 an index, and the folder opens as one dump."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradscope
from gradscope.arrays.dtypes import dtype_name
from gradscope.dump.distributed import folder_swap, process_writer
from gradscope.dump.distributed.process_writer import ProcessGroup, ProcessWriter
from gradscope.dump.manifest.manifest import Layer, RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.record import Process, Record, Shard, SiteFacts
from gradscope.dump.verify import verify
from gradscope.errors import DumpError, MachineError, UsageError
from gradscope.stats import TensorStats, merged_manifest, tensor_stats
from tests.support.dumps import write

COUNT = 2
ROWS = np.arange(24, dtype=np.float32).reshape(6, 4) - 7
HALVES = np.linspace(-1, 1, 12).reshape(3, 4).astype(ml_dtypes.bfloat16)
KEYS = np.arange(8, dtype=np.uint32).reshape(4, 2)
SCALAR = np.array(2.5)
EMPTY = np.zeros((0, 3), np.float32)

#: By key: the global array, its logical dtype where NumPy has none, and the boxes of each process.
ARRAYS: dict[str, tuple[Any, str | None, list[list[tuple[slice, ...]]]]] = {
    "activation/rows": (ROWS, None, [[np.s_[0:3, :]], [np.s_[3:6, :]]]),
    "activation/columns": (HALVES, None, [[np.s_[:, 0:1], np.s_[:, 1:2]], [np.s_[:, 2:3], np.s_[:, 3:4]]]),
    "activation/grid": (ROWS, None, [[np.s_[0:4, 0:2], np.s_[4:6, 0:2]], [np.s_[0:4, 2:4], np.s_[4:6, 2:4]]]),
    "param/replicated": (HALVES, None, [[np.s_[:, :]], []]),
    "param/elsewhere": (ROWS, None, [[], [np.s_[:, :]]]),
    "input/keys": (KEYS, "key<fry>", [[np.s_[0:2]], [np.s_[2:4]]]),
    "activation/scalar": (SCALAR, None, [[()], []]),
    "activation/empty": (EMPTY, None, [[np.s_[:, :]], []]),
}


def outline() -> Iterator[Record]:
    for key, (array, dtype, _) in ARRAYS.items():
        yield global_record(key, array, dtype)
    alias = global_record("activation/again", ROWS, None)
    yield replace(alias, alias_of="activation/rows")
    yield replace(global_record("param_grad/unused", HALVES, None), absent="disconnected")


def global_record(key: str, array: Any, dtype: str | None) -> Record:
    family, _, name = key.partition("/")
    shape = array.shape[:-1] if dtype else array.shape
    facts: dict[str, Any] = {"array": None, "stats": {}, "site": SiteFacts(index=0)}
    return Record(family=family, name=name, shape=shape, dtype=dtype or dtype_name(array.dtype), **facts)


def shards(index: int) -> Iterator[Record]:
    for key, (array, dtype, boxes) in ARRAYS.items():
        for box in boxes[index]:
            yield shard(global_record(key, array, dtype), array, box)


def shard(record: Record, full: Any, box: tuple[slice, ...]) -> Record:
    array = full[box]
    shape = array.shape[: len(record.shape)]
    starts = tuple(each.start or 0 for each in box) if isinstance(box, tuple) else (box.start or 0,)
    box_of_shard = Shard(of=record.name, whole=record.shape, start=starts)
    stats = tensor_stats(array).to_json()
    return replace(record, name=box_of_shard.name(shape), shape=shape, array=array, stats=stats, shard=box_of_shard)


def group(index: int, barrier: Callable[[], Any] = lambda: None) -> ProcessGroup:
    process = Process(index=index, count=COUNT)
    return ProcessGroup(process=process, barrier=barrier, merge=merged_manifest)


def write_together(folder: Path, *, records: Callable[[int], Any] = shards, force: bool = False) -> None:
    """Writes a dump with one thread for each process."""
    barrier = threading.Barrier(COUNT)

    def process(index: int) -> None:
        try:
            with ProcessWriter(folder, group(index, barrier.wait), force=force) as writer:
                for record in (*outline(), *records(index)):
                    writer.add(record)
                layer = Layer(path="net", index=0, rms={"out": 1.0 + index}, elements={"out": 1 + 2 * index})
                writer.commit(RunFacts(loss=1.5, layers=(layer,)))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(COUNT) as pool:
        running = [pool.submit(process, index) for index in range(COUNT)]
    errors = [error for each in running if (error := each.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_together(tmp_path / "run")
    return tmp_path / "run"


def test_a_folder_holds_a_file_of_every_process_and_an_index(folder: Path) -> None:
    files = {path.name for path in folder.iterdir()}
    assert files == {"proc-00000-of-00002.npz", "proc-00001-of-00002.npz", "index.json"}


def test_a_processs_file_is_an_ordinary_npz(folder: Path) -> None:
    with np.load(folder / "proc-00001-of-00002.npz") as members:
        assert np.array_equal(members["activation/rows@3,0"], ROWS[3:])
        assert np.array_equal(members["param/elsewhere"], ROWS)


@pytest.mark.parametrize("key", ARRAYS)
def test_a_tensor_is_assembled_bit_for_bit(folder: Path, key: str) -> None:
    array, dtype, _ = ARRAYS[key]
    with open_dump(folder) as dump:
        found = dump.array(key)
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert dump.entry(key).dtype == (dtype or dtype_name(array.dtype))


@pytest.mark.parametrize("chunk_bytes", [1, 8, 24, 4 << 20])
@pytest.mark.parametrize("key", ARRAYS)
def test_its_elements_come_in_order_and_in_bounded_chunks(folder: Path, key: str, chunk_bytes: int) -> None:
    array = ARRAYS[key][0]
    with open_dump(folder) as dump:
        chunks = list(dump.chunks(key, chunk_bytes))
        stretch = dump.stretch(key, array.size // 3, array.size)
    assert all(chunk.nbytes <= max(chunk_bytes, array.itemsize) for chunk in chunks)
    assert b"".join(chunk.tobytes() for chunk in chunks) == array.tobytes()
    assert stretch.tobytes() == array.tobytes()[array.size // 3 * array.itemsize :]


def test_statistics_are_those_of_the_global_array(folder: Path) -> None:
    with open_dump(folder) as dump:
        for key in ("activation/rows", "activation/columns", "activation/grid", "param/replicated"):
            found, expected = TensorStats.from_json(dump.entry(key).stats), tensor_stats(ARRAYS[key][0])
            assert (found.shape, found.dtype, found.zeros) == (expected.shape, expected.dtype, expected.zeros)
            assert (found.min, found.max, found.histogram) == (expected.min, expected.max, expected.histogram)
            assert [found.mean, found.std, found.l2] == pytest.approx([expected.mean, expected.std, expected.l2])


def test_a_tensor_in_one_shard_keeps_its_hash(folder: Path) -> None:
    with open_dump(folder) as dump:
        assert dump.entry("param/elsewhere").stats["hash"] == tensor_stats(ROWS).hash
        assert "hash" not in dump.entry("activation/rows").stats


def test_layers_are_measured_over_all_processes(folder: Path) -> None:
    with open_dump(folder) as dump:
        (layer,) = dump.manifest.layers
    assert layer.elements == {"out": 4}
    assert layer.rms["out"] == pytest.approx(((1 * 1.0**2 + 3 * 2.0**2) / 4) ** 0.5)


def test_entries_are_in_the_order_in_which_they_were_added_with_aliases_and_absent_ones(folder: Path) -> None:
    with open_dump(folder) as dump:
        assert dump.keys() == (*ARRAYS, "activation/again", "param_grad/unused")
        assert np.array_equal(dump.array("activation/again"), ROWS)
        assert dump.entry("param_grad/unused").absent == "disconnected"
        assert dump.manifest.ledger.captured == len(ARRAYS)
        assert (dump.manifest.loss, dump.manifest.complete) == (1.5, True)


def test_it_is_verified_shown_and_compared_like_any_other(folder: Path, tmp_path: Path) -> None:
    assert verify(folder).tensors == len(ARRAYS)
    single = [replace(each, array=ARRAYS[f"{each.family}/{each.name}"][0]) for each in list(outline())[: len(ARRAYS)]]
    with gradscope.load(folder) as dump, gradscope.load(write(tmp_path / "one.npz", single)) as one:
        assert "rows" in dump.table()
        assert gradscope.compare(one, dump, bitwise=True, allow_missing=["again", "unused"])


def test_without_its_index_it_reads_as_incomplete(folder: Path) -> None:
    (folder / "index.json").unlink()
    (folder / "proc-00001-of-00002.npz").unlink()
    with open_dump(folder) as dump:
        assert not dump.manifest.complete
        assert dump.manifest.note == (
            "index.json is missing, so the run did not finish: 1 of 2 processes' files are there, "
            "and 4 tensors lack a shard"
        )
        assert set(dump.keys()) == {"param/replicated", "activation/scalar", "activation/empty"}
        assert dump.array("param/replicated").tobytes() == HALVES.tobytes()


def test_a_process_that_fails_leaves_the_others_files(tmp_path: Path) -> None:
    def failing(index: int) -> Iterator[Record]:
        yield from shards(index)
        if index == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_together(tmp_path / "run", records=failing)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["proc-00000-of-00002.npz"]
    with open_dump(tmp_path / "run") as dump:
        assert not dump.manifest.complete


def test_a_dump_is_replaced_only_with_force(folder: Path) -> None:
    with pytest.raises(UsageError, match="holds a dump"):
        write_together(folder)
    write_together(folder, force=True)
    verify(folder)


def test_a_dump_stays_whole_until_the_one_that_replaces_it_is(folder: Path, tmp_path: Path) -> None:
    def failing(index: int) -> Iterator[Record]:
        yield from shards(index)
        if index == 1:
            raise ZeroDivisionError

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ZeroDivisionError):
        write_together(folder, records=failing, force=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with open_dump(tmp_path / "run.incomplete") as dump:
        assert not dump.manifest.complete
    write_together(folder, force=True)  # what the failure left is no hindrance
    verify(folder)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("exchanges", [True, False])
def test_what_else_is_in_the_folder_stays(folder: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:  # a file system that cannot
        monkeypatch.setattr(folder_swap, "_exchanged", lambda _one, _other: False)
    (folder / "notes").write_text("mine")
    (folder / "index.json").write_text("an older one")
    folder.chmod(0o750)
    write_together(folder, force=True)
    verify(folder)
    assert (folder / "notes").read_text() == "mine"
    assert folder.stat().st_mode & 0o777 == 0o750
    assert list(folder.parent.iterdir()) == [folder]


def test_a_dump_that_cannot_replace_the_old_one_is_left_next_to_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_new: Path, _old: Path) -> None:
        raise MachineError("cannot replace it")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(process_writer, "swap_folders", failing)
    with pytest.raises(MachineError, match="cannot replace it"):
        write_together(folder, force=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    verify(tmp_path / "run.incomplete")


def test_all_files_of_a_dump_of_another_number_of_processes_are_replaced(folder: Path) -> None:
    (folder / "proc-00000-of-00002.npz").rename(folder / "proc-00002-of-00003.npz")
    write_together(folder, force=True)
    assert not (folder / "proc-00002-of-00003.npz").exists()


def test_a_tensor_has_to_be_a_shard(tmp_path: Path) -> None:
    with (
        ProcessWriter(tmp_path / "run", group(0)) as writer,
        pytest.raises(UsageError, match="has a tensor and is not a shard"),
    ):
        writer.add(replace(global_record("param/w", ROWS, None), array=ROWS))


@pytest.mark.parametrize(("path", "problem"), [("a/run", "no folder"), ("file", "a folder, and that is not one")])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=problem):
        ProcessWriter(tmp_path / path, group(0))


def boxes_of(key: str, *boxes: Sequence[tuple[slice, ...]]) -> Callable[[int], Iterator[Record]]:
    """Returns shards of one tensor only, of any boxes."""
    array, dtype, _ = ARRAYS[key]
    return lambda index: (shard(global_record(key, array, dtype), array, box) for box in boxes[index])


@pytest.mark.parametrize(
    ("boxes", "problem"),
    [
        (([np.s_[0:3, :]], [np.s_[2:6, :]]), "overlaps another or leaves a gap"),
        (([np.s_[0:3, :]], [np.s_[4:6, :]]), "overlaps another or leaves a gap"),
        (([np.s_[0:3, :]], [np.s_[0:6, :]]), "two shards of it start at the same index"),
        (([np.s_[0:3, 0:2]], [np.s_[3:6, 0:2], np.s_[3:6, 2:4]]), r"its shard at \[0, 2\] is missing"),
        (([], [np.s_[3:6, :]]), r"its shard at \[0, 0\] is missing"),
    ],
)
def test_shards_that_do_not_tile_the_array_are_refused(tmp_path: Path, boxes: Any, problem: str) -> None:
    with pytest.raises(DumpError, match=problem):
        write_together(tmp_path / "run", records=boxes_of("activation/rows", *boxes))


def test_shards_that_disagree_are_refused(tmp_path: Path) -> None:
    def disagreeing(index: int) -> Iterator[Record]:
        for each in boxes_of("activation/rows", [np.s_[0:3, :]], [np.s_[3:6, :]])(index):
            assert each.shard is not None
            yield replace(each, shard=replace(each.shard, whole=(6 + index, 4)))

    with pytest.raises(DumpError, match="do not agree on its dtype float32 and shape"):
        write_together(tmp_path / "run", records=disagreeing)


def test_a_missing_process_is_named(folder: Path) -> None:
    (folder / "proc-00001-of-00002.npz").unlink()
    with pytest.raises(DumpError, match=r"run: proc-00001-of-00002.npz: it cannot be opened: No such file"):
        open_dump(folder)


def test_a_file_of_another_run_is_recognised(folder: Path, tmp_path: Path) -> None:
    write_together(tmp_path / "other", records=boxes_of("activation/rows", [np.s_[0:3, :]], [np.s_[3:6, :]]))
    (tmp_path / "other" / "proc-00001-of-00002.npz").replace(folder / "proc-00001-of-00002.npz")
    with pytest.raises(DumpError, match="is of another run than index"):
        open_dump(folder)


def without_entry(index: dict[str, Any]) -> None:
    del index["manifest"]["entries"][1]


def with_a_location(index: dict[str, Any]) -> None:
    location = {"member": "a.npy", "dtype": "<f4", "crc32": 0, "offset": 0, "size_bytes": 0}
    index["manifest"]["entries"][0]["stored"] = location


def with_an_absent_tensor(index: dict[str, Any]) -> None:
    index["manifest"]["entries"][0]["absent"] = "disconnected"


def with_an_alias_of_nothing(index: dict[str, Any]) -> None:
    index["manifest"]["entries"][-2]["alias_of"] = "activation/nothing"


def with_another_shape(index: dict[str, Any]) -> None:
    index["manifest"]["entries"][0]["shape"] = [1 << 40, 4]


def with_files_that_are_counts(index: dict[str, Any]) -> None:
    index["files"] = 2


def of_a_newer_schema(index: dict[str, Any]) -> None:
    index["manifest"]["schema"] = 3


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        (without_entry, "does not name 'activation/columns'"),
        (with_a_location, "states the location of its bytes"),
        (with_an_absent_tensor, "has no tensor of its own, and there are shards"),
        (with_an_alias_of_nothing, "which is no tensor of its own"),
        (with_another_shape, "do not agree"),
        (with_files_that_are_counts, "should be a list"),
        (of_a_newer_schema, "follows schema 3"),
    ],
)
def test_an_altered_index_is_refused(folder: Path, alter: Callable[[Any], None], problem: str) -> None:
    index = json.loads((folder / "index.json").read_text())
    alter(index)
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DumpError, match=problem):
        open_dump(folder)


def test_a_flipped_bit_in_any_process_is_found(folder: Path) -> None:
    path = folder / "proc-00001-of-00002.npz"
    data = bytearray(path.read_bytes())
    with np.load(path) as members:
        at = data.find(members["activation/rows@3,0"].tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DumpError, match="activation/rows: "):
        verify(folder)
    with open_dump(folder) as dump, pytest.raises(DumpError, match="activation/rows: "):
        list(dump.chunks("activation/rows"))
