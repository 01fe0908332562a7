"""A history is written to the end of the program, whichever thread takes the last step, by one process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradscope.errors import MachineError, UsageError
from gradscope.history.database import writable_database
from gradscope.history.database.schema import TABLES
from gradscope.history.folder.run_folder import RunFolder
from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord
from gradscope.history.history_writer import HistoryWriter

BEGIN = """
import atexit, os, sys, threading, time
from pathlib import Path
from gradscope.history.history_rows import StepRecord
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.folder.run_folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
writer = HistoryWriter(folder.path, from_step=0, facts={}, locked=folder)

def write(step):
    writer.write(lambda: StepRecord(numbers={"step": step, "loss": 1.0}))

"""
AT_THE_END = """
def go_on():
    threading.main_thread().join()
    time.sleep(0.05)
    write(0)

def end():
    write(1)
    writer.close()

threading.Thread(target=go_on).start()
atexit.register(end)
"""
NEVER_CLOSED = "write(0); write(1)"
FORKED = """
write(0)
told, tell = os.pipe()
child = os.fork()
if not child:
    try:
        write(1)
    except Exception as error:
        print(type(error).__name__, flush=True)
    os.write(tell, b".")
    time.sleep(5)
    os._exit(0)
write(1)
writer.close()
folder.close()
RunFolder(folder.path).close()
os.read(told, 1)
os.kill(child, 9)
"""


def steps_of(program: str, folder: Path) -> tuple[list[int], str]:
    """The steps in the history that a program has written, and what it printed."""
    command = [sys.executable, "-c", BEGIN + program, folder]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    with History(folder) as history:
        return history.step_numbers().tolist(), run.stdout


@pytest.mark.slow
def test_steps_are_written_while_the_program_ends(tmp_path: Path) -> None:
    assert steps_of(AT_THE_END, tmp_path / "run") == ([0, 1], "")


@pytest.mark.slow
def test_what_is_never_closed_is_written(tmp_path: Path) -> None:
    assert steps_of(NEVER_CLOSED, tmp_path / "run") == ([0, 1], "")


def test_a_forked_process_neither_writes_nor_keeps_the_folder(tmp_path: Path) -> None:
    assert steps_of(FORKED, tmp_path / "run") == ([0, 1], f"{UsageError.__name__}\n")


def test_a_writer_that_is_dropped_writes_all_and_unlocks_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    writer = HistoryWriter(tmp_path, from_step=0, facts={}, locked=folder)
    for step in range(3):
        writer.write(lambda step=step: StepRecord(numbers={"step": step, "loss": 1.0}))
    del folder, writer
    gc.collect()
    reopened, until = None, time.monotonic() + 10
    while reopened is None:  # its thread is still writing
        try:
            reopened = RunFolder(tmp_path)
        except UsageError:
            assert time.monotonic() < until
            time.sleep(0.01)
    reopened.close()
    with History(tmp_path) as history:
        assert history.step_numbers().tolist() == [0, 1, 2]


def test_a_step_that_is_taken_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, from_step=0, facts={}) as writer:
        for loss in (1.0, 2.0):
            writer.write(lambda loss=loss: StepRecord(numbers={"step": 0, "loss": loss}))
    with History(tmp_path) as history:
        assert history.losses()["loss"].tolist() == [2.0]


def test_a_folder_that_is_closed_is_unlocked_whoever_has_its_lock_open(tmp_path: Path) -> None:
    """A process that was just forked has the file open until it gets to close it."""
    folder = RunFolder(tmp_path)
    (held,) = (int(each.name) for each in Path("/proc/self/fd").iterdir() if each.resolve().parent == folder.path)
    inherited = os.dup(held)
    folder.close()
    RunFolder(tmp_path).close()
    os.close(inherited)


def test_a_history_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writable_database, "TABLES", {**TABLES, "full": "CREATE TABLE full (disk"})
    with pytest.raises(MachineError, match="cannot write to"):
        HistoryWriter(tmp_path, from_step=0, facts={})
    assert list(tmp_path.iterdir()) == []
