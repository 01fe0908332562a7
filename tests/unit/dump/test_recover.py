"""What a killed run had finished can be had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradscope.dump.reader import open_dump
from gradscope.dump.recover import recover
from gradscope.dump.storage.writing.partial_file import PartialFile
from gradscope.dump.writer import DumpWriter
from gradscope.errors import DumpError, UsageError
from tests.support.dumps import litter, read_all, record, some_of_everything, write


def partial_of_a_killed_run(folder: Path) -> Path:
    """A temporary file as a run leaves it that is killed after some tensors."""
    with DumpWriter(folder / "dump.npz") as writer:
        for each in some_of_everything():
            writer.add(each)
        (partial,) = (folder / name for name in litter(folder))
        killed = folder / "killed.partial"
        killed.write_bytes(partial.read_bytes())
    return killed


def test_every_finished_tensor_comes_back(tmp_path: Path) -> None:
    result = recover(partial_of_a_killed_run(tmp_path), tmp_path / "saved.npz")
    expected = read_all(write(tmp_path / "complete.npz", some_of_everything()))
    assert read_all(tmp_path / "saved.npz") == {key: each for key, each in expected.items() if "wrapper" not in key}
    assert (result.tensors, result.lost_bytes) == (7, 0)
    with open_dump(tmp_path / "saved.npz") as saved:
        assert not saved.manifest.complete
        assert saved.manifest.note == "recovered from killed.partial"
        assert saved.entry("input/keys").dtype == "key<fry>"
        assert saved.entry("input/keys").shape == (2,)


def test_a_cut_anywhere_loses_only_what_is_behind_it(tmp_path: Path) -> None:
    killed = partial_of_a_killed_run(tmp_path)
    content = killed.read_bytes()
    complete = read_all(write(tmp_path / "complete.npz", some_of_everything()))
    with open_dump(tmp_path / "complete.npz") as dump:
        ends = [stored.offset + stored.size_bytes for entry in dump.manifest.entries if (stored := entry.stored)]
    for size in sorted({*range(0, len(content), 97), *(end - 1 for end in ends), *ends}):
        killed.write_bytes(content[:size])
        finished = sum(end <= size for end in ends)
        if finished:
            (tmp_path / "saved.npz").unlink(missing_ok=True)
            assert recover(killed, tmp_path / "saved.npz").tensors == finished
            saved = read_all(tmp_path / "saved.npz")
            assert saved == {key: complete[key] for key in saved}
        else:
            with pytest.raises(DumpError, match="no tensor in it is complete"):
                recover(killed, tmp_path / "nothing.npz")


def test_a_damaged_tensor_ends_what_is_saved(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", [record(name, np.full(5, 7, np.int8)) for name in "abc"])
    content = bytearray(path.read_bytes())
    content[content.rindex(bytes([7] * 5))] ^= 1
    path.write_bytes(content[:-20])
    result = recover(path, tmp_path / "saved.npz")
    assert list(read_all(tmp_path / "saved.npz")) == ["activation/a", "activation/b"]
    assert result.lost_bytes > 0


def test_a_finished_dump_cut_short_is_recovered_too(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", [record("a", np.arange(4.0))])
    path.write_bytes(path.read_bytes()[:-30])
    recover(path, tmp_path / "saved.npz")
    assert list(read_all(tmp_path / "saved.npz")) == ["activation/a"]


def test_a_whole_dump_has_lost_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", some_of_everything())
    result = recover(path, tmp_path / "saved.npz")
    assert (result.tensors, result.lost_bytes, result.was_whole) == (7, 0, True)
    path.write_bytes(path.read_bytes()[:-1])
    result = recover(path, tmp_path / "again.npz")
    assert (result.tensors, result.was_whole) == (7, False)
    assert result.lost_bytes > 0


def test_a_dump_that_is_still_being_written_is_refused(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "dump.npz") as writer:
        writer.add(record("a", np.zeros(3)))
        (partial,) = litter(tmp_path)
        with pytest.raises(DumpError, match="still being written"):
            recover(tmp_path / partial, tmp_path / "saved.npz")


def test_recovering_to_the_path_it_was_meant_for_keeps_the_partial(tmp_path: Path) -> None:
    dead = PartialFile(tmp_path / "dump.npz")
    dead.create()
    dead.close()
    (partial,) = litter(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    killed = partial_of_a_killed_run(tmp_path / "elsewhere")
    (tmp_path / partial).write_bytes(killed.read_bytes())
    recover(tmp_path / partial, tmp_path / "dump.npz")
    assert litter(tmp_path) == [partial]


def test_an_existing_target_is_refused(tmp_path: Path) -> None:
    killed = partial_of_a_killed_run(tmp_path)
    write(tmp_path / "dump.npz", [])
    with pytest.raises(UsageError, match="exists"):
        recover(killed, tmp_path / "dump.npz")
