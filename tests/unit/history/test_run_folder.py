"""A run's folder is locked, or the reason that it cannot be is said, and nothing of it is left."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from gradscope.dump.storage.writing.read_files import reads_remembered
from gradscope.errors import MachineError, UsageError
from gradscope.history.folder.run_files import HISTORY, dump_path, files_of, is_run, state_path, trace_path
from gradscope.history.folder.run_folder import RunFolder
from gradscope.history.history_reader import History
from gradscope.training.loop.processes import Processes
from gradscope.training.loop.resuming import opened
from gradscope.training.probing.probe_history import ProbeHistory
from tests.integration.command import gradscope
from tests.integration.training.histories import STEPS, write


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


def old_run(folder: Path) -> dict[str, bytes]:
    files = {dump_path(folder, 100).name: b"dump", state_path(folder, 100).name: b"state", HISTORY: b"old"}
    for name, data in {**files, "golden.npz": b"other"}.items():
        (folder / name).write_bytes(data)
    trace_path(folder, 3).mkdir()
    (trace_path(folder, 3) / "profile").touch()
    return files


def found(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}


def test_a_run_that_is_replaced_leaves_no_dump_of_its_steps(tmp_path: Path) -> None:
    old_run(tmp_path)
    with RunFolder(tmp_path) as folder:
        with pytest.raises(UsageError, match=r"its step-000100\.npz is read"):
            folder.clear([dump_path(tmp_path, 100)])
        with reads_remembered(anew=True):
            state_path(tmp_path, 100).read_bytes()
        with pytest.raises(UsageError, match=r"its state-000100\.npz is read"):
            folder.clear()
        assert dump_path(tmp_path, 100).exists()
        with reads_remembered(anew=True):
            folder.clear()
        assert folder.others == ["golden.npz"]
        (tmp_path / HISTORY).write_bytes(b"new")
        folder.set_aside.remove()
    assert found(tmp_path) == {HISTORY: b"new", "golden.npz": b"other"}
    assert not trace_path(tmp_path, 3).exists()


#: What a process was doing to the folder when it died.
MOMENTS = ["setting aside", "before anything new", "something new", "putting back", "removing"]


@pytest.mark.parametrize("moment", ["failed", *MOMENTS])
def test_a_run_is_there_again_unless_something_of_the_new_one_is(tmp_path: Path, moment: str) -> None:
    files = old_run(tmp_path)
    script = f"""
import os, shutil
from pathlib import Path
from gradscope.history.folder.run_files import HISTORY
from gradscope.history.folder.run_folder import RunFolder
path, end = Path(), lambda *_: os._exit(9)
folder = RunFolder(path)
if {moment!r} == "setting aside":
    rename = Path.rename
    Path.rename = lambda self, target: end() if self.name.startswith("step") else rename(self, target)
folder.clear()
if {moment!r} == "before anything new":
    end()
(path / HISTORY).write_bytes(b"new")
(path / "trace-000007").mkdir()
if {moment!r} == "putting back":
    rename = Path.rename
    Path.rename = lambda self, target: end() if self.name.startswith("step") else rename(self, target)
if {moment!r} == "removing":
    shutil.rmtree = end
    folder.set_aside.remove()
if {moment!r} == "something new":
    end()
folder.close()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == (0 if moment == "failed" else 9)
    assert is_run(tmp_path)
    assert (files_of(tmp_path) / HISTORY).read_bytes() == (b"new" if moment == "removing" else b"old")
    RunFolder(tmp_path).close()
    assert found(tmp_path) == {**({HISTORY: b"new"} if moment == "removing" else files), "golden.npz": b"other"}
    assert trace_path(tmp_path, 3).exists() == (moment != "removing")
    assert trace_path(tmp_path, 7).exists() == (moment == "removing")
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".gradscope-")]


@pytest.mark.parametrize("state", ["moving", "replaced", "removing"])
def test_a_link_in_place_of_what_is_set_aside_is_not_followed(tmp_path: Path, state: str) -> None:
    """As in a run of somebody else, whose link leads to a folder of who continues it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / HISTORY).write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    old_run(tmp_path / "run")
    link = tmp_path / "run" / f".gradscope-{state}"
    link.symlink_to(tmp_path / "mine")
    assert files_of(tmp_path / "run") == tmp_path / "run"
    with RunFolder(tmp_path / "run") as folder:
        assert not link.is_symlink()
        folder.clear()
    assert found(tmp_path / "mine") == {HISTORY: b"mine"}
    assert found(tmp_path / "run")[HISTORY] == b"old"


def test_a_link_in_place_of_what_an_alarm_saved_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "state.npz").touch()
    saved = [f"alarm-{step:06}" for step in range(1, 6)]
    with RunFolder(tmp_path / "run") as folder:
        for name in saved:
            (folder.path / name).symlink_to(tmp_path / "mine")
        assert folder.keep_alarms(2, saved) == []
    assert (tmp_path / "mine" / "state.npz").exists()


@pytest.mark.parametrize("begun", [False, True], ids=["before its history is made", "before its first step"])
def test_a_run_that_one_was_to_replace_that_was_killed_is_read_and_not_replaced_unasked(
    tmp_path: Path, begun: bool
) -> None:
    run = write(tmp_path / "run")
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom gradscope.history.history_writer import HistoryWriter\n"
        "from gradscope.history.folder.run_folder import RunFolder\n"
        "folder = RunFolder(Path(sys.argv[1]))\nfolder.clear()\n"
        f"if {begun}:\n    HistoryWriter(folder.path, from_step=0, facts={{}}, locked=folder)\nos._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(run)], check=False).returncode == 9
    shown = gradscope("show", run, folder=tmp_path)
    assert (shown.status, "30 taken, 4 recorded" in shown.output) == (0, True), shown.errors
    assert "has the run that a new one is to replace, which has taken no step" in shown.errors
    with pytest.raises(UsageError, match="holds a run"):
        opened(run, {}, resume=False, force=False, processes=Processes())
    with pytest.raises(UsageError, match="holds a run that was recorded up to step 29"):
        ProbeHistory(run, start=0, force=False)
    with History(run) as history:
        assert history.files == history.folder == run
        assert history.step_numbers().tolist() == list(STEPS)
