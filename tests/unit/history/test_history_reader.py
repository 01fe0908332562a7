"""A history is read in the memory of its numbers, not of an object for each; its folder may have any name."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.errors import DumpError, MachineError
from gradscope.history.database.schema import STEPS
from gradscope.history.database.untrusted_database import reading
from gradscope.history.exporting.long_table import csv_parts
from gradscope.history.folder.run_files import HISTORY
from gradscope.history.history_reader import History
from gradscope.history.history_writer import HistoryWriter
from gradscope.training.loop.resuming import start
from gradscope.training.probing.probe_history import ProbeHistory
from tests.support.permissions import forbid

#: A state that nothing looks at.
ANYTHING: Any = None

RECORDED = 60_000
EXPORTED = 10_000


def write_many_steps(folder: Path, number: int = RECORDED) -> None:
    HistoryWriter(folder, from_step=0, facts={}).close()
    with sqlite3.connect(folder / HISTORY) as connection:
        rows = ((step, step / 7, step / 3, step / 9) for step in range(number))
        connection.executemany("INSERT INTO steps (step, loss, grad_norm, param_norm) VALUES (?, ?, ?, ?)", rows)


def peak_bytes(action: Callable[[], object]) -> int:
    """Returns the most bytes that an action has at any time."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_many_steps_are_read_in_about_the_memory_of_their_numbers(tmp_path: Path) -> None:
    write_many_steps(tmp_path)
    with History(tmp_path) as history:
        assert peak_bytes(history.steps) < 2 * RECORDED * len(STEPS) * 8
        steps = history.steps()
    np.testing.assert_array_equal(steps["step"], np.arange(RECORDED))
    np.testing.assert_array_equal(steps["loss"], np.arange(RECORDED) / 7)
    assert np.isnan(steps["learning_rate"]).all()


def test_many_steps_are_exported_part_by_part(tmp_path: Path) -> None:
    write_many_steps(tmp_path, EXPORTED)
    with History(tmp_path) as history:
        parts = [*csv_parts(history, lambda _: True)]
    lines = "".join(parts).splitlines()
    assert max(map(len, parts)) < 1 << 20
    assert len(lines) == 1 + 3 * EXPORTED
    assert lines[-3:] == [f"{EXPORTED - 1},step,,{name},{(EXPORTED - 1) / divisor}"
                          for name, divisor in (("loss", 7), ("grad_norm", 3), ("param_norm", 9))]  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        "steps (step, loss) VALUES (1, 'x')", "losses VALUES (1, x'00')", "stats (step, tensor, l2) VALUES (1, 1, -1)",
        "noise (step, tensor, groups) VALUES (1, 1, 0.5)", "histograms VALUES (1, 1, 'x')",
        "alarms (why) VALUES (x'00')",
    ],
)  # fmt: skip
def test_a_run_is_not_continued_where_its_history_is_damaged_anywhere(tmp_path: Path, row: str) -> None:
    write_many_steps(tmp_path, 1)
    with History(tmp_path) as history:
        history.require_sound()
    with sqlite3.connect(tmp_path / HISTORY) as connection:
        connection.execute(f"INSERT INTO {row}")
    (tmp_path / "state-000007.npz").touch()
    table = row.partition(" ")[0]
    with pytest.raises(DumpError, match=f"a value in its table {table} is of a wrong") as refused:
        start(tmp_path, ANYTHING, None, steps=9, notify=print)
    assert str(refused.value.hint).endswith("--checkpoint " + str(tmp_path / "state-000007.npz"))
    with pytest.raises(DumpError, match=f"a value in its table {table} is of a wrong"):
        ProbeHistory(tmp_path, start=1, force=False)


def test_the_name_of_a_folder_need_not_be_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    HistoryWriter(folder, from_step=0, facts={"model": "net"}).close()
    with History(folder) as history:
        assert history.facts["model"] == "net"


def test_a_history_that_another_process_has_locked_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HistoryWriter(tmp_path, from_step=0, facts={}).close()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0))
    locking = sqlite3.connect(tmp_path / HISTORY, isolation_level=None)
    with closing(locking), History(tmp_path) as history:
        locking.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DumpError, match="another process has locked it"):
            history.steps()
        with pytest.raises(DumpError, match="another process has locked it"):
            History(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the system lists no descriptors")
@pytest.mark.parametrize("closed", ["", "history.sqlite", "-wal", "-shm"], ids=["all", "database", "log", "index"])
def test_a_history_whose_file_the_program_closes_is_missed_at_once(closed: str, tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom gradscope.history.history_writer import HistoryWriter\n"
        "writer = HistoryWriter(Path(sys.argv[1]), from_step=0, facts={})\n"
        "for each in [*Path('/proc/self/fd').glob('*')]:\n"
        "    if int(each.name) > 2 and each.exists() and str(each.readlink()).endswith(sys.argv[2]):\n"
        "        os.close(int(each.name))\n"
        "other = open('other', 'wb+')\nfor action in (lambda: writer.describe({'a': 'b'}), writer.close):\n"
        "    try:\n        action()\n    except Exception as error:\n        print(error)"
    )
    begin = time.monotonic()
    command = [sys.executable, "-c", program, str(tmp_path), closed]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.count("its file was closed\n") == 2, done.stderr
    assert time.monotonic() - begin < 5, "SQLite tries for ten seconds"
    assert (tmp_path / "other").read_bytes() == b""


def test_who_reads_a_history_of_this_process_may_end_before_who_writes_it(tmp_path: Path) -> None:
    HistoryWriter(tmp_path, from_step=0, facts={}).close()
    with History(tmp_path) as history:
        history.step_numbers()
        writer = HistoryWriter(tmp_path, from_step=0, facts={})
    writer.describe({"a": "b"})
    writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the system lists no descriptors")
def test_a_writer_that_is_closed_leaves_no_file_open(tmp_path: Path) -> None:
    HistoryWriter(tmp_path, from_step=0, facts={}).close()
    open_files = [each.readlink() for each in Path("/proc/self/fd").glob("*") if each.is_symlink()]
    assert not [each for each in open_files if each.is_relative_to(tmp_path)]


def test_a_process_that_reads_the_history_that_it_writes_keeps_its_locks(tmp_path: Path) -> None:
    """Where a process closes a file, it loses its locks on it: whoever reads it next would remove the log."""
    writer = HistoryWriter(tmp_path, from_step=0, facts={})
    with History(tmp_path) as history:
        history.step_numbers()
    program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM run'); c.close()"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / HISTORY)], check=True)
    log = tmp_path / f"{HISTORY}-wal"
    assert log.exists()
    writer.describe({"a": "b"})
    with History(tmp_path) as history:
        assert history.facts["a"] == "b"
    writer.close()
    assert not log.exists()


def test_a_history_that_is_removed_while_it_is_written_is_missed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    writer = HistoryWriter(tmp_path / "run", from_step=0, facts={})
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(MachineError, match="has been removed"):
        writer.close()


def test_a_folder_that_may_not_be_entered_is_not_said_to_be_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HistoryWriter(tmp_path, from_step=0, facts={}).close()
    forbid(monkeypatch, tmp_path)
    with pytest.raises(MachineError, match=r"cannot open .*: Permission denied"):
        History(tmp_path)


@pytest.mark.parametrize(
    ("code", "error"), [("CANTOPEN", MachineError), ("FULL", MachineError), ("CORRUPT", DumpError)]
)
def test_a_log_whose_index_cannot_be_made_is_no_damage(code: str, error: type[Exception], tmp_path: Path) -> None:
    HistoryWriter(tmp_path, from_step=0, facts={}).close()
    (tmp_path / f"{HISTORY}-wal").touch()
    failure = sqlite3.OperationalError("failed")
    failure.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    with pytest.raises(error, match="failed"), reading(tmp_path / HISTORY):
        raise failure
