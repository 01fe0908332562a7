"""What is at a path when a writer starts, and what another process puts there meanwhile."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.dump.manifest.manifest import RunFacts
from gradscope.dump.storage.writing import partial_file
from gradscope.dump.storage.writing.atomic_file import write_atomically
from gradscope.dump.storage.writing.read_files import reads_remembered
from gradscope.dump.storage.writing.target_path import checked_file, checked_target, files_of
from gradscope.dump.writer import DumpWriter
from gradscope.errors import MachineError, UsageError
from tests.support import hostile
from tests.support.dumps import litter, read_all, record, write


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("links", [True, False], ids=["with hard links", "without"])
def test_of_several_writers_to_one_new_path_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    path = tmp_path / "dump.npz"
    if not links:
        monkeypatch.setattr(os, "link", failing(errno.EPERM))
    first, *others = [DumpWriter(path) for _ in range(4)]
    with first:
        first.add(record("of the first", np.ones(3)))
        first.commit(RunFacts())
    for other in others:
        with other, pytest.raises(UsageError, match="another process has written it meanwhile"):
            other.commit(RunFacts())
    assert read_all(path).keys() == {"activation/of the first"}
    assert litter(tmp_path) == []


def test_a_new_path_is_never_written_on_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EIO))
    with pytest.raises(MachineError, match="Input/output error"):
        write(tmp_path / "dump.npz", [], force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["dump.txt", "dump.HTML", "dump.pt"])
def test_a_dump_gets_no_name_of_another_kind_of_file(tmp_path: Path, name: str) -> None:
    for force in (False, True):
        with pytest.raises(UsageError, match=r"the name of a dump ends in \.npz") as refused:
            DumpWriter(tmp_path / name, force=force)
        assert refused.value.hint == "name it dump.npz"
    for allowed in ("dump", "dump.v2", "dump.npz.bak"):
        assert read_all(write(tmp_path / allowed, [])) == {}
    (tmp_path / "link").symlink_to("linked.npz")
    (tmp_path / "link.npz").symlink_to("stored")
    for link in ("link", "link.npz"):
        assert read_all(write(tmp_path / link, [])) == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_dump_that_is_replaced_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "dump.npz", [])
    path.chmod(mode)
    with DumpWriter(path, force=True) as writer:
        (partial,) = litter(tmp_path)
        assert stat.S_IMODE((tmp_path / partial).stat().st_mode) & ~mode == 0, "also while it is being written"
        writer.commit(RunFacts())
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_an_incomplete_dump_is_as_private_as_the_one_that_it_would_have_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", [])
    path.chmod(0o600)
    with DumpWriter(path, force=True) as writer:
        incomplete = writer.commit_incomplete("failed", RunFacts())
    assert stat.S_IMODE(incomplete.stat().st_mode) == 0o600


def test_an_incomplete_dump_replaces_no_file_that_the_run_read(tmp_path: Path) -> None:
    read = write(tmp_path / "dump.incomplete.npz", [record("read", np.ones(3))])
    with DumpWriter(tmp_path / "dump.npz", inputs=[read]) as writer, pytest.raises(MachineError, match="that are read"):
        writer.commit_incomplete("failed", RunFacts())
    assert read_all(read).keys() == {"activation/read"}
    assert litter(tmp_path) == []


def test_inputs_and_sources_are_kept_even_with_force(tmp_path: Path) -> None:
    data = write(tmp_path / "data.npz", [])
    link, name = tmp_path / "link.npz", tmp_path / "name.npz"
    link.symlink_to(data)
    name.hardlink_to(data)
    for path in (data, link, name):
        with pytest.raises(UsageError, match="one of the files that are read"):
            DumpWriter(path, force=True, inputs=[data])
    with pytest.raises(UsageError, match="source of a module"):
        DumpWriter(hostile.__file__, force=True)


def test_what_a_model_has_opened_to_read_is_kept(tmp_path: Path) -> None:
    text, array, written, other = (tmp_path / name for name in ("rows.txt", "rows.npy", "made.txt", "other.npy"))
    text.write_text("1 2")
    np.save(array, np.ones(2))
    np.save(other, np.ones(2))
    np.load(other)
    with reads_remembered():
        np.loadtxt(text)
        np.load(array)
        written.write_text("made by the model")
        os.close(os.open(os.fsencode(tmp_path), os.O_RDONLY))
    np.load(other)
    for path in (text, array):
        with pytest.raises(UsageError, match=f"{path.name}: it is one of the files that are read"):
            DumpWriter(path, force=True)
    for path in (written, other):
        assert checked_target(path, force=True) == path


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the first tensor", "before the end"])
def test_a_file_is_kept_that_the_model_reads_later(tmp_path: Path, when: str) -> None:
    path = write(tmp_path / "a.npz", [])
    old = path.read_bytes()
    writer = DumpWriter(path, force=True)

    def read() -> None:
        with reads_remembered():
            path.read_bytes()

    def write_anew() -> None:
        if when == "before the first tensor":
            read()
        with writer:
            read()
            writer.commit(RunFacts())

    with pytest.raises(UsageError, match="one of the files that are read"):
        write_anew()
    assert path.read_bytes() == old
    assert litter(tmp_path) == []


def test_a_folder_that_is_read_is_not_walked_through_for_a_new_file(tmp_path: Path) -> None:
    def read() -> Iterator[Path]:
        pytest.fail("nothing is at the path that could be one of them")
        yield tmp_path

    assert checked_target(tmp_path / "new", force=True, inputs=files_of(read())) == tmp_path / "new"
    (tmp_path / "old").touch()
    with pytest.raises(UsageError, match="one of the files that are read"):
        checked_target(tmp_path / "old", force=True, inputs=files_of([tmp_path]))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_written_to_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    target = tmp_path / "dump.npz"
    living = partial_file.PartialFile(target)
    living.create()
    monkeypatch.setattr(fcntl, "flock", failing(code))
    with caplog.at_level(logging.WARNING, logger="gradscope"):
        write(target, [record("conv", np.ones(3))])
        write(target, [record("conv", np.ones(3))])
    assert [each.getMessage() for each in caplog.records] == [
        f"gradscope: the file system of {tmp_path} has no locks: do not run two writers to one path at the same time"
    ]
    assert read_all(target).keys() == {"activation/conv"}
    assert len(litter(tmp_path)) == 1, "whether its writer lives is unknown"
    living.discard()
    living.close()


def test_a_small_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "map.toml"
    write_atomically(checked_file(path, force=False), b"old", replace=False)
    with pytest.raises(UsageError, match="exists"):
        checked_file(path, force=False)
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(MachineError, match="No space left"):
        write_atomically(path, b"new", replace=True)
    assert (path.read_bytes(), litter(tmp_path)) == (b"old", [])


def test_a_small_file_takes_the_place_of_nothing_but_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("elsewhere")
    for name, problem in {
        "fifo": "a FIFO",
        "link": "a symbolic link",
        "/dev/null": "a device",
        ".": "a folder",
    }.items():
        with pytest.raises(UsageError, match=problem):
            checked_file(tmp_path / name, force=True)
    assert not (tmp_path / "elsewhere").exists()


def test_a_hyphen_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="cannot write to standard output"):
        checked_target(Path("-"), force=True)
