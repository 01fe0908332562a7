"""A history is read in the memory of its numbers, not of an object for each; its folder may have any name."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gradscope.errors import DumpError, MachineError
from gradscope.history.database.schema import STEPS
from gradscope.history.history_reader import History
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.run_folder import HISTORY

RECORDED = 20_000


def test_many_steps_are_read_in_about_the_memory_of_their_numbers(tmp_path: Path) -> None:
    HistoryWriter(tmp_path, from_step=0, facts={}).close()
    with sqlite3.connect(tmp_path / HISTORY) as connection:
        rows = ((step, step / 7, step / 3, step / 9) for step in range(RECORDED))
        connection.executemany("INSERT INTO steps (step, loss, grad_norm, param_norm) VALUES (?, ?, ?, ?)", rows)
    with History(tmp_path) as history:
        tracemalloc.start()
        try:
            steps = history.steps()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 3 * RECORDED * len(STEPS) * 8
    np.testing.assert_array_equal(steps["step"], np.arange(RECORDED))
    np.testing.assert_array_equal(steps["loss"], np.arange(RECORDED) / 7)
    assert np.isnan(steps["learning_rate"]).all()


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


def test_a_history_that_is_removed_while_it_is_written_is_missed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    writer = HistoryWriter(tmp_path / "run", from_step=0, facts={})
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(MachineError, match="has been removed"):
        writer.close()
