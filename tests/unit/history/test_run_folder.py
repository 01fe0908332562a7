"""A run's folder is locked, or the reason that it cannot be is said, and nothing of it is left."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from gradscope.errors import MachineError, UsageError
from gradscope.history.run_folder import HISTORY, RunFolder, dump_path, state_path


def test_a_folder_whose_lock_fails_is_named_and_removed_if_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", fail)
    descriptors = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(MachineError, match=r"cannot lock .*run: Input/output error"):
        RunFolder(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert sorted(Path("/proc/self/fd").iterdir()) == descriptors


@pytest.mark.parametrize("name", ["run", "around/it/run", "full", "empty"])
def test_a_folder_in_which_nothing_is_written_is_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with RunFolder(tmp_path / name) as folder:
        assert folder.added == []
    assert sorted(tmp_path.rglob("*")) == before
    with RunFolder(tmp_path / name) as folder:
        (folder.path / HISTORY).touch()
        assert folder.added == [HISTORY]
    assert (tmp_path / name / ".lock").exists()


def test_a_lock_that_cannot_be_made_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(MachineError, match=r"cannot write to .*run: No space left"):
        RunFolder(tmp_path / "around" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_nowhere_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="run is not a folder"):
        RunFolder(tmp_path / "run")
    assert not (tmp_path / "nowhere").exists()


def test_a_run_that_is_replaced_leaves_no_dump_of_its_steps(tmp_path: Path) -> None:
    dump, state, other = dump_path(tmp_path, 100), state_path(tmp_path, 100), tmp_path / "golden.npz"
    for path in (dump, state, other, tmp_path / HISTORY):
        path.touch()
    with RunFolder(tmp_path) as folder:
        with pytest.raises(UsageError, match=r"its step-000100\.npz is read"):
            folder.clear([dump])
        assert dump.exists()
        folder.clear()
        assert folder.others == ["golden.npz"]
    assert not dump.exists()
    assert not state.exists()
    assert other.exists()
