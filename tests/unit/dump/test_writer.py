"""The writer makes an ordinary `.npz`, checks the target before any work, and removes an uncommitted file."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.dump.manifest.manifest import RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.storage.writing import target_path as targets
from gradscope.dump.storage.writing.partial_file import PartialFile
from gradscope.dump.storage.writing.unpublished import remove_unpublished
from gradscope.dump.writer import DumpWriter
from gradscope.errors import MachineError, UsageError
from tests.support.dumps import litter, read_all, record, some_of_everything, without_array, write


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write(tmp_path / "dump.npz", some_of_everything(), loss=1.0)


def test_numpy_opens_it_without_pickle(dump: Path) -> None:
    with np.load(dump, allow_pickle=False) as found:
        assert found["activation/conv"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert found["activation/blocks[3]/attn#2"].view(ml_dtypes.bfloat16).astype(float)[0] == 1.5
        assert found["activation/codes"].tolist() == [-8, 7]
        assert found["activation/none"].shape == (0, 3)
        assert found["__gradscope__.json"].startswith(b'{"schema":2,')


def test_zip_tools_find_no_error_in_it(dump: Path) -> None:
    with zipfile.ZipFile(dump) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == "__gradscope__.json"
    if unzip := shutil.which("unzip"):
        subprocess.run([unzip, "-tq", dump], check=True, capture_output=True)


def test_it_is_stored_dated_1980_and_aligned(dump: Path) -> None:
    with zipfile.ZipFile(dump) as archive:
        assert {(each.compress_type, each.date_time) for each in archive.infolist()} == {(0, (1980, 1, 1, 0, 0, 0))}
    with open_dump(dump) as opened:
        stored = [entry.stored for entry in opened.manifest.entries if entry.stored is not None]
    assert all(each.offset % 64 == 0 for each in stored)
    first = np.memmap(dump, dtype="<f4", mode="r", offset=stored[0].offset, shape=(2, 3))
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_equal_dumps_are_equal_bytes(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, some_of_everything(), loss=1.0) for name in ("one.npz", "two.npz"))
    assert one.read_bytes() == two.read_bytes()


def test_a_dump_without_tensors_is_a_dump(tmp_path: Path) -> None:
    path = write(tmp_path / "stats.npz", [without_array("conv", stats={"mean": 1.0})])
    with open_dump(path) as dump:
        assert dump.entry("activation/conv").stats == {"mean": 1.0}
        with pytest.raises(UsageError, match="statistics only"):
            dump.array("activation/conv")


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (record("conv", np.zeros(2)), "already"),
        (without_array("conv"), "already"),
        (record("a", np.zeros(2), family="nonsense"), "no known family"),
        (record("", np.zeros(2)), "no name"),
        (record("a", np.zeros(2), shape=(3,)), "shape"),
        (record("a", np.zeros(2), dtype="float32"), "dtype"),
        (record("a", np.zeros((1,) * 33)), "axes"),
        (record("a", np.array([None])), "object"),
        (record("a" * 2000, np.zeros(2)), "bytes"),
        (without_array("a", alias_of="activation/missing"), "not in the dump"),
    ],
)
def test_a_record_that_cannot_be_stored_is_refused(tmp_path: Path, bad: Any, problem: str) -> None:
    with DumpWriter(tmp_path / "dump.npz") as writer:
        writer.add(record("conv", np.zeros(2)))
        with pytest.raises(UsageError, match=problem):
            writer.add(bad)
        writer.commit(RunFacts())
    assert list(read_all(tmp_path / "dump.npz")) == ["activation/conv"]


@pytest.mark.slow
def test_an_existing_file_is_replaced_only_by_force(dump: Path) -> None:
    before = dump.read_bytes()
    with pytest.raises(UsageError, match="exists") as refused:
        DumpWriter(dump)
    assert "--force" in str(refused.value.hint)
    assert dump.read_bytes() == before
    write(dump, [record("new", np.zeros(2))], force=True)
    assert list(read_all(dump)) == ["activation/new"]


def test_leaving_without_commit_leaves_no_trace(dump: Path) -> None:
    before = dump.read_bytes()
    with DumpWriter(dump, force=True) as writer:
        writer.add(record("new", np.zeros(2)))
        assert len(litter(dump.parent)) == 1
    assert dump.read_bytes() == before
    assert litter(dump.parent) == []


def test_removing_it_from_elsewhere_leaves_no_trace(dump: Path) -> None:
    before = dump.read_bytes()
    with DumpWriter(dump, force=True) as writer:
        threading.Thread(target=remove_unpublished).run()
        assert litter(dump.parent) == []
        remove_unpublished()
        with pytest.raises(MachineError, match="cannot write"):
            writer.commit(RunFacts())
    assert dump.read_bytes() == before


@pytest.mark.slow
def test_a_process_that_is_forked_removes_nothing_when_it_comes_to_its_end(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom gradscope.dump.manifest.manifest import RunFacts\n"
        "from gradscope.dump.writer import DumpWriter\n"
        "with DumpWriter('dump.npz') as writer:\n    child = os.fork()\n    if not child: sys.exit()\n"
        "    os.waitpid(child, 0)\n    writer.commit(RunFacts())"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert read_all(tmp_path / "dump.npz") == {}


def test_what_is_committed_is_not_removed(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "dump.npz") as writer:
        writer.commit(RunFacts())
        remove_unpublished()
    assert read_all(tmp_path / "dump.npz") == {}


def test_a_failed_run_is_saved_under_another_name(dump: Path) -> None:
    before = dump.read_bytes()
    with DumpWriter(dump, force=True) as writer:
        writer.add(record("new", np.zeros(2)))
        saved = writer.commit_incomplete("out of memory", RunFacts())
    assert saved == dump.with_name("dump.incomplete.npz")
    with open_dump(saved) as incomplete:
        assert not incomplete.manifest.complete
        assert incomplete.manifest.note == "out of memory"
    assert dump.read_bytes() == before


def test_a_failed_run_does_not_replace_an_odd_thing(tmp_path: Path) -> None:
    (tmp_path / "dump.incomplete.npz").mkdir()
    with DumpWriter(tmp_path / "dump.npz") as writer, pytest.raises(MachineError, match="regular"):
        writer.commit_incomplete("failed", RunFacts())
    assert litter(tmp_path) == []


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.npz"
    link.symlink_to(tmp_path / "there" / "dump.npz")
    write(link, [record("conv", np.zeros(2))])
    assert link.is_symlink()
    assert list(read_all(tmp_path / "there" / "dump.npz")) == ["activation/conv"]


def test_odd_targets_are_refused_before_any_work(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        odd = {
            tmp_path: "a folder",
            tmp_path / "fifo": "a FIFO",
            tmp_path / "socket": "a socket",
            Path("/dev/null"): "a device",
            tmp_path / "loop": "symbolic links|loop",
            tmp_path / "missing" / "dump.npz": "there is no folder",
            tmp_path / "file" / "dump.npz": "cannot write",
            tmp_path / ("n" * 256): "too long",
            tmp_path / "nul\0": "null",
        }
        for path, problem in odd.items():
            with pytest.raises(UsageError, match=problem):
                DumpWriter(path, force=True)


def test_a_name_as_long_as_the_file_system_allows_works(tmp_path: Path) -> None:
    assert read_all(write(tmp_path / ("n" * 255), [])) == {}


def test_a_read_only_folder_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by its mode: root may write everywhere.
    monkeypatch.setattr(targets.os, "access", lambda path, mode: False)
    with pytest.raises(MachineError, match="read-only"):
        DumpWriter(tmp_path / "dump.npz")


def test_a_folder_that_may_not_be_entered_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", forbid)
        with pytest.raises(MachineError, match=r"dump\.npz: Permission denied"):
            DumpWriter(tmp_path / "dump.npz")


def test_a_pipe_without_a_path_is_refused() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(UsageError, match="it is a FIFO"):
            DumpWriter(f"/dev/fd/{writer}", force=True)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_disk_that_is_too_small_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(targets.shutil, "disk_usage", lambda path: usage)
    with DumpWriter(tmp_path / "dump.npz") as writer:
        writer.require_space(1000)
        with pytest.raises(MachineError, match=r"1,001 bytes.*1,000 bytes"):
            writer.require_space(1001)


def test_remains_of_a_dead_writer_are_swept_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "dump.npz"
    dead = PartialFile(target)
    dead.create()
    dead.close()
    living, other = PartialFile(target), PartialFile(tmp_path / "other.npz")
    living.create()
    other.create()
    other.close()
    assert len(litter(tmp_path)) == 3
    write(target, [])
    assert len(litter(tmp_path)) == 2, "the living writer's, and that of another target"
    living.close()


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_the_replaced_file_is_closed(dump: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "?")

    old = dump.stat()
    if fails:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(MachineError) if fails else nullcontext(), DumpWriter(dump, force=True) as writer:
        writer.commit(RunFacts())
    assert os.path.samestat(dump.stat(), old) is fails
    for thread in threading.enumerate():
        if thread.name == "gradscope-closer":
            thread.join(10)
    assert not any(is_open_as(old, descriptor) for descriptor in range(1024))


def is_open_as(file: os.stat_result, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), file)
    return False


def test_a_partial_taken_for_a_dead_one_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradscope.dump.storage.writing import partial_file as partials

    true_lock, sweeps = partials.lock, iter([True, False])

    def swept_meanwhile(descriptor: int) -> bool:
        if next(sweeps):
            for name in litter(tmp_path):
                (tmp_path / name).unlink()
        return true_lock(descriptor)

    monkeypatch.setattr(partials, "lock", swept_meanwhile)
    with DumpWriter(tmp_path / "dump.npz") as writer:
        assert len(litter(tmp_path)) == 1
        writer.commit(RunFacts())
    assert read_all(tmp_path / "dump.npz") == {}


def test_a_failing_disk_is_named_with_path_and_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EDQUOT, "?")

    monkeypatch.setattr(os, "pwrite", fail)
    refused = pytest.raises(MachineError, match=r"dump\.npz: Disk quota exceeded")
    with DumpWriter(tmp_path / "dump.npz") as writer, refused as failed:
        writer.add(record("conv", np.zeros(2)))
    assert failed.value.hint is not None
    assert litter(tmp_path) == []
