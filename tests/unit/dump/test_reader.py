"""Reading returns the written tensors, in full or in chunks, from a file or from memory, from any thread."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.arrays.dtypes import dtype_name, storable
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.reader import dumps_in, open_dump
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.dump.verify import verify
from gradscope.errors import DumpError, MachineError, UsageError
from gradscope.naming import key_of
from tests.support.dumps import record, some_of_everything, without_array, write
from tests.support.permissions import forbid

SCALARS = sorted(
    {
        scalar
        for scalar in vars(ml_dtypes).values()
        if isinstance(scalar, type) and storable(dtype_name(np.dtype(scalar)))
    }
    | {np.bool_, np.complex64, np.complex128, *(np.dtype(code).type for code in "bhilBHILefd")},
    key=str,
)
#: Every byte value, so that NaN payloads, -0.0 and subnormals are among the elements; and a multiple of every size.
CODES = np.tile(np.arange(256, dtype=np.uint8), 3 * 16)
NARROW = {getattr(ml_dtypes, name) for name in ("int1", "int2", "int4", "uint1", "uint2", "uint4")}
LAYOUTS = {
    "0-d": lambda flat: flat[1].reshape(()),
    "empty": lambda flat: flat[:0].reshape(0, 3),
    "C": lambda flat: flat[:24].reshape(2, 3, 4),
    "F": lambda flat: np.asfortranarray(flat[:24].reshape(2, 3, 4)),
    "strided": lambda flat: flat[:48].reshape(4, 12)[::2, 1::3],
    "reversed": lambda flat: flat[:24].reshape(4, 6)[::-1],
    "broadcast": lambda flat: np.broadcast_to(flat[:3], (4, 3)),
}


def elements(scalar: Any) -> np.ndarray[Any, Any]:
    # Not every byte is a boolean or an integer of less than a byte.
    if scalar is np.bool_ or scalar in NARROW:
        return np.resize(np.array([0, 1, 1]).astype(scalar), 64)
    return CODES.view(scalar)


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: np.dtype(scalar).name)
def test_every_dtype_and_layout_comes_back_bit_for_bit(tmp_path: Path, scalar: Any) -> None:
    arrays = {layout: cut(elements(scalar)) for layout, cut in LAYOUTS.items()}
    path = write(tmp_path / "dump.npz", [record(layout, array) for layout, array in arrays.items()])
    np.load(path, allow_pickle=False).close()
    with open_dump(path) as dump:
        for layout, array in arrays.items():
            found = dump.array(f"activation/{layout}")
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert found.tobytes() == array.tobytes()
            chunks = list(dump.chunks(f"activation/{layout}", chunk_bytes=10))
            assert b"".join(chunk.tobytes() for chunk in chunks) == array.tobytes()
            assert {chunk.dtype for chunk in chunks} <= {array.dtype}
            stretch = dump.stretch(f"activation/{layout}", array.size // 3, array.size)
            assert (stretch.dtype, stretch.ndim) == (array.dtype, 1)
            assert stretch.tobytes() == array.tobytes()[array.size // 3 * array.itemsize :]


@pytest.fixture(params=["file", "memory"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DumpSource]:
    """Yields the same dump from a file and from memory."""
    arrays = {key_of(each.family, each.name): each.array for each in some_of_everything() if each.array is not None}
    with open_dump(write(tmp_path / "dump.npz", some_of_everything(), loss=0.5)) as dump:
        yield dump if request.param == "file" else MemoryDump(dump.manifest, arrays)


def test_keys_and_entries_are_those_written_in_order(source: DumpSource) -> None:
    written = some_of_everything()
    assert source.keys() == tuple(key_of(each.family, each.name) for each in written)
    assert source.manifest.loss == 0.5
    for each, key in zip(written, source.keys(), strict=True):
        entry = source.entry(key)
        assert (entry.family, entry.name, entry.shape, entry.dtype) == (each.family, each.name, each.shape, each.dtype)
        assert (entry.stats, entry.site, entry.absent) == (each.stats, each.site, each.absent)


def test_an_alias_resolves_to_its_tensor(source: DumpSource) -> None:
    assert source.resolve("activation/wrapper") == "activation/conv"
    assert source.resolve("activation/conv") == "activation/conv"
    assert source.array("activation/wrapper").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_keys_come_back_as_key_data(source: DumpSource) -> None:
    assert source.entry("input/keys").shape == (2,)
    assert source.array("input/keys").tolist() == [[1, 2], [3, 4]]


def test_chunks_are_flat_and_in_order(source: DumpSource) -> None:
    chunks = list(source.chunks("activation/conv", chunk_bytes=8))
    assert [chunk.tolist() for chunk in chunks] == [[0, 1], [2, 3], [4, 5]]
    assert [chunk.tolist() for chunk in source.chunks("activation/conv", chunk_bytes=1)] == [[n] for n in range(6)]
    assert list(source.chunks("activation/none")) == []


def test_a_stretch_is_flat_and_contains_the_requested_elements_only(source: DumpSource) -> None:
    assert source.stretch("activation/conv", 1, 4).tolist() == [1, 2, 3]
    assert source.stretch("activation/wrapper", 4, 6).tolist() == [4, 5]
    assert source.stretch("activation/none", 0, 0).shape == (0,)


def test_a_chunk_outlives_the_next(tmp_path: Path) -> None:
    with open_dump(write(tmp_path / "dump.npz", [record("a", np.arange(100.0))])) as dump:
        chunks = list(dump.chunks("activation/a", chunk_bytes=80))
    assert np.concatenate(chunks).tolist() == list(range(100))


def test_a_reused_chunk_is_valid_until_the_next_one(source: DumpSource) -> None:
    keys = [key for key in source.keys() if source.entry(key).absent is None]  # noqa: SIM118 - no mapping
    for key in keys:
        own = b"".join(chunk.tobytes() for chunk in source.chunks(key, chunk_bytes=10))
        assert b"".join(chunk.tobytes() for chunk in source.chunks(key, chunk_bytes=10, reused=True)) == own


def test_a_missing_tensor_is_refused_with_the_reason_or_the_nearest_name(source: DumpSource) -> None:
    with pytest.raises(UsageError, match="disconnected"):
        source.array("param_grad/unused")
    with pytest.raises(UsageError, match="no entry activation/cony") as refused:
        source.array("activation/cony")
    assert "activation/conv" in str(refused.value.hint)


def test_a_dump_has_the_tensors_that_it_stores_and_those_of_their_aliases(source: DumpSource) -> None:
    found = {key: source.has_tensor(key) for key in (*source.keys(), "activation/no such")}
    assert [key for key, there in found.items() if not there] == ["param_grad/unused", "activation/no such"]


def test_a_dump_of_statistics_has_no_tensor(tmp_path: Path) -> None:
    with open_dump(write(tmp_path / "stats.npz", [without_array("layer", stats={"mean": 0.5})])) as dump:
        assert not dump.has_tensor("activation/layer")


def test_two_threads_read_two_tensors_at_once(tmp_path: Path) -> None:
    arrays = [np.random.default_rng(seed).standard_normal(1 << 18) for seed in range(2)]
    path = write(tmp_path / "dump.npz", [record(str(seed), array) for seed, array in enumerate(arrays)])

    def read(seed: int) -> bool:
        chunks = dump.chunks(f"activation/{seed}", chunk_bytes=1 << 12)
        return np.array_equal(np.concatenate(list(chunks)), arrays[seed])

    with open_dump(path) as dump, ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, [0, 1] * 4))


def test_chunks_take_a_chunk_of_memory_and_not_a_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", [record("a", np.broadcast_to(np.float32(1), (8 << 20,)))])
    with open_dump(path) as dump:
        tracemalloc.start()
        total = sum(chunk.size for chunk in dump.chunks("activation/a", chunk_bytes=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == 8 << 20
    assert peak < 4 << 20


def test_every_flipped_byte_of_data_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", [record("a", np.arange(8, dtype=np.int8)), record("b", np.zeros(3))])
    content = path.read_bytes()
    with open_dump(path) as dump:
        place = dump.entry("activation/a").stored
    assert place is not None
    for position in range(place.offset, place.offset + place.size_bytes):
        path.write_bytes(content[:position] + bytes((content[position] ^ 1,)) + content[position + 1 :])
        with open_dump(path) as dump:
            assert dump.array("activation/b").tolist() == [0, 0, 0], "one damaged tensor does not spoil another"
            with pytest.raises(DumpError, match=r"activation/a: its data is damaged"):
                dump.array("activation/a")
            with pytest.raises(DumpError, match="damaged"):
                list(dump.chunks("activation/a"))


def test_verifying_counts_what_it_read(tmp_path: Path) -> None:
    found = verify(write(tmp_path / "dump.npz", some_of_everything()))
    assert (found.entries, found.tensors, found.complete, found.note) == (9, 7, True, "")
    assert found.size_bytes == 24 + 6 + 2 + 16 + 8 + 0 + 2


def test_a_dump_that_is_replaced_while_it_is_open_stays_readable(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", [record("a", np.arange(3.0))])
    with open_dump(path) as dump:
        write(path, [without_array("b")], force=True)
        assert dump.array("activation/a").tolist() == [0, 1, 2], "the old file, which a new dump has replaced"


def test_the_folder_of_an_alarm_stands_for_its_dump_and_is_no_series(tmp_path: Path) -> None:
    for name in ("batch", "dump", "state"):
        write(tmp_path / f"{name}.npz", [record(name, np.ones(3, np.float32), family="param")])
    assert list(dumps_in(tmp_path)) == ["batch", "dump", "state"]
    (tmp_path / "alarm.json").write_text("{}", encoding="utf-8")
    assert dumps_in(tmp_path) == {}
    with open_dump(tmp_path) as opened:
        assert [entry.name for entry in opened.manifest.entries] == ["dump"]


def test_a_damaged_dump_in_a_folder_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "step_1.npz", some_of_everything())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DumpError, match=r"step_1\.npz: "):
        dumps_in(tmp_path)


def test_an_archive_without_members_is_said_to_be_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz")
    with pytest.raises(DumpError, match="an archive without any tensor"), open_dump(tmp_path / "none.npz"):
        pass


@pytest.mark.parametrize("at", ["", "inner"])
def test_a_folder_that_may_not_be_entered_is_refused(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    np.save(tmp_path / "a.npy", np.ones(3))
    np.save(tmp_path / "inner" / "b.npy", np.ones(3))
    forbid(monkeypatch, tmp_path / at)
    with pytest.raises(MachineError, match=f"cannot open .*{at}: Permission denied"):
        open_dump(tmp_path)


def test_dumps_are_not_looked_for_in_a_folder_that_may_not_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, tmp_path)
    with pytest.raises(MachineError, match=r"cannot open .*: Permission denied"):
        dumps_in(tmp_path)


def test_a_name_that_is_too_long_is_no_failure_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="File name too long"):
        open_dump(tmp_path / f"{'x' * 300}.npz")
    with pytest.raises(OSError, match="File name too long"):  # the command line says what to do
        dumps_in(tmp_path / f"{'x' * 300}.npz")
