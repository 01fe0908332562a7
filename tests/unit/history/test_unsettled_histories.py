"""A history that a killed process left in the middle of something is read, and not changed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.errors import DumpError, MachineError
from gradscope.history.folder.run_files import HISTORY
from gradscope.history.history_reader import History
from tests.integration.training.histories import STEPS, write
from tests.support.sampled import sampled

LOG, INDEX, JOURNAL = (f"{HISTORY}-{end}" for end in ("wal", "shm", "journal"))

#: How a journal ends that names another file.
MAGIC = bytes.fromhex("d9d505f920a163d7")


def killed(run: Path, mode: str, *statements: str) -> Path:
    """Write a run, and let a process change its history that is killed before it has written all."""
    write(run)
    program = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        f"c.execute('PRAGMA journal_mode={mode}'); c.execute('PRAGMA cache_size=1');"
        f"[c.execute(each) for each in {statements!r}]; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(run / HISTORY)], check=True)
    return run


@pytest.fixture
def hot(tmp_path: Path) -> Path:
    """A run whose history has to be undone: the transaction that is in it did not come to its end."""
    return killed(tmp_path / "run", "DELETE", "BEGIN IMMEDIATE", "UPDATE stats SET l2 = 1e9", "DELETE FROM steps")


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    """A run that was copied without the index of its log, which has a step."""
    run = killed(tmp_path / "run", "WAL", "INSERT INTO steps (step) VALUES (30)")
    (run / INDEX).unlink()
    return run


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read(run: Path) -> list[int]:
    before = files(run)
    with History(run) as history:
        found = history.step_numbers().tolist()
        assert files(run) == before
        assert history.steps()["step"].tolist() == found
    assert files(run) == before
    return found


def test_what_a_killed_process_did_not_complete_is_undone(hot: Path) -> None:
    assert (hot / JOURNAL).stat().st_size
    assert read(hot) == list(STEPS)


def test_a_history_is_read_where_its_log_was_being_ended(hot: Path) -> None:
    """The log is gone, and the history does not say so yet."""
    content = bytearray((hot / HISTORY).read_bytes())
    content[18:20] = b"\x02\x02"
    (hot / HISTORY).write_bytes(content)
    assert read(hot) == list(STEPS)


def test_a_writer_that_is_killed_while_a_history_is_read_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    with History(write(tmp_path / "run")) as history:
        killed(tmp_path / "run", "DELETE", "BEGIN IMMEDIATE", "UPDATE stats SET l2 = 1e9", "DELETE FROM steps")
        with pytest.raises(DumpError, match="the process that writes it was killed meanwhile"):
            history.steps()
    assert read(tmp_path / "run") == list(STEPS)


def test_a_log_without_an_index_is_read(logged: Path) -> None:
    assert read(logged) == [*STEPS, 30]


def test_the_log_is_that_beside_the_file_itself(logged: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / HISTORY).symlink_to(logged / HISTORY)
    with History(linked) as history:
        assert history.step_numbers().tolist() == [*STEPS, 30]


@pytest.mark.slow
@sampled("name", [LOG, INDEX, JOURNAL])
def test_what_is_beside_a_history_and_no_file_is_refused(tmp_path: Path, name: str) -> None:
    run = killed(tmp_path / "run", "WAL", "INSERT INTO steps (step) VALUES (30)")
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    program = "import sys, gradscope; gradscope.load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(run)], timeout=20, capture_output=True, text=True, check=False
    )
    assert f"its {name} is not a regular file" in done.stderr


def test_a_journal_that_names_another_file_is_refused(hot: Path, tmp_path: Path) -> None:
    """SQLite would remove the file that a journal names as that of all files of a transaction."""
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    name = os.fsencode(victim)
    with (hot / JOURNAL).open("ab") as journal:
        journal.write(b"\0\0\0\0" + name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + MAGIC)
    connection = sqlite3.connect(f"file:{hot / HISTORY}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):  # it is one that has to be undone
        connection.execute("SELECT * FROM run").fetchone()
    connection.close()
    with pytest.raises(DumpError, match="its journal names another file"):
        History(hot)
    assert victim.exists()


def test_a_copy_takes_no_room_where_the_history_has_none(hot: Path) -> None:
    os.truncate(hot / HISTORY, 1 << 36)
    with History(hot) as history:
        assert history.step_numbers().tolist() == list(STEPS)


def test_no_room_for_a_copy_is_no_damage(hot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(hot / "missing"))
    with pytest.raises(MachineError, match=r"cannot copy .*: No such file"):
        History(hot)


def test_a_copy_that_is_read_is_no_longer_on_the_disk(
    hot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with History(hot) as history:
        assert not [*(tmp_path / "temporary").iterdir()]
        assert history.step_numbers().tolist() == list(STEPS)
    shutil.rmtree(hot)
