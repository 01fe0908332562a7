"""Histories: what a run reads and shows of its own, and what is refused of an untrusted one."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import UsageError
from gradscope.history.database.schema import COUNTS
from gradscope.history.folder.run_folder import RunFolder
from gradscope.history.history_rows import Alarm, StepRecord
from gradscope.history.history_writer import HistoryWriter
from tests.integration.command import gradscope, in_terminal
from tests.integration.training.histories import KEYS, STEPS, record, row, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run")


def test_a_run_is_read_as_it_was_written(run: Path) -> None:
    with gs.load(run) as found:
        assert found.keys() == KEYS
        assert found.facts["model"] == "net"
        np.testing.assert_array_equal(found.steps["loss"], [4, 3, np.nan, 1.1])
        assert np.isnan(found.steps["learning_rate"]).all()
        np.testing.assert_allclose(found.series("slot/mu/w", "l2"), [1, 2, 4, 2**2.9])
        assert np.isnan(found.series("slot/mu/w", "ratio")).all()
        dump = found.at(10)
        assert dump.stats("param/w").zeros == 3
        assert (found.alarms[0].key, found.alarms[0].value) == ("param_grad/w", None)
        for step in (-1, 10**30):
            with pytest.raises(gs.UsageError, match=f"step {step} was not recorded"):
                found.at(step)
        with pytest.raises(gs.UsageError, match="step 11 was not recorded") as missing:
            found.at(11)
        assert "10 and 20" in str(missing.value.hint)
        with pytest.raises(KeyError, match="no tensor param/v"):
            found.series("param/v", "l2")
        with pytest.raises(gs.UsageError, match="no column 'l3'"):
            found.series("param/w", "l3")


def test_other_programs_read_it(run: Path) -> None:
    connection = sqlite3.connect(run / "history.sqlite")
    query = "SELECT family, name, l2 FROM stats JOIN tensors ON id = tensor WHERE step = 29 AND family = 'update'"
    assert connection.execute(query).fetchall() == [("update", "w", pytest.approx(2**2.9))]
    assert ("ratio",) in connection.execute('SELECT "column" FROM units').fetchall()
    connection.close()


def test_show_has_trends_steps_and_tensors(run: Path) -> None:
    trends = gradscope("show", run, "--json", folder=run).json
    assert trends["loss"] == {"first": 4.0, "last": 1.1}
    by_key = {(row["family"], row["name"]): row for row in trends["rows"]}
    assert by_key["slot/mu", "w"] == pytest.approx(
        {
            "family": "slot/mu", "name": "w", "column": "l2", "first": 1, "last": 2**2.9, "slope": 10 * np.log10(2),
            "change": 2.9 * np.log10(2),
        }
    )  # fmt: skip
    assert trends["alarms"][0]["family"] == "param_grad"
    step = gradscope("show", run, "--step", 10, "--families", "param,slot", "--json", folder=run).json
    assert [row["family"] for row in step["rows"]] == ["param", "slot/mu"]
    tensor = gradscope("show", run, "--tensor", "update/w", "--json", folder=run).json
    assert [row["step"] for row in tensor["rows"]] == list(STEPS)
    loss = gradscope("show", run, "--tensor", "loss", "--json", folder=run).json
    assert [(row["step"], row.get("loss")) for row in loss["rows"]] == [(0, 4.0), (10, 3.0), (20, None), (29, 1.1)]
    watched = gradscope("watch", run, "--json", folder=run).json
    assert None not in watched.values()
    for counts in (watched, tensor["rows"][0]):
        assert {type(value) for name, value in counts.items() if name in COUNTS} == {int}
    text = gradscope("show", run, folder=run).output
    assert "at step 20 param_grad/w has 2 NaN; the state before it and its batch are in alarm-000020" in text
    assert "4.00 to 1.10" in text


@pytest.mark.slow
@pytest.mark.parametrize("sort", ["slope", "-slope", "-last", "name"])
def test_trends_are_sorted_by_a_column(tmp_path: Path, sort: str) -> None:
    rates = {"param/a": -1.0, "param/b": 0.0, "param/c": 2.0, "param_grad/b": 1.0}
    (tmp_path / "run").mkdir()
    with HistoryWriter(tmp_path / "run", from_step=0, facts={"model": "net"}) as history:
        history.describe({}, map(row, rates))
        for step in STEPS:
            stats = {key: {"l2": 10 ** (rate * step / 100)} for key, rate in rates.items()}
            history.write(lambda step=step, stats=stats: StepRecord(numbers={"step": step}, stats=stats))
    rows = gradscope("show", "run", "--sort", sort, "--json", folder=tmp_path).json["rows"]
    order = {"slope": "a b b c", "-slope": "c b b a", "-last": "c b b a", "name": "a b b c"}[sort]
    assert " ".join(found["name"] for found in rows) == order
    on_terminal = in_terminal("show", "run", "--sort", sort, folder=tmp_path, columns=100).plain
    lines = on_terminal.partition("Trends (")[2].splitlines()[2:6]
    assert " ".join(line.split()[0].rpartition("/")[2] for line in lines) == order
    at_step = gradscope("show", "run", "--step", 10, "--sort", "-l2", folder=tmp_path).output
    assert [line.split()[0] for line in at_step.splitlines()[3:6]] == ["c", "b", "a"]


def test_a_terminal_shows_a_run_on_one_screen_and_all_of_it_in_full(tmp_path: Path) -> None:
    blocks = [f"{family}/block{at}" for family in ("param", "update") for at in range(60)]
    names = [f"activation_grad/scan[{at}]" for at in range(60)]
    others = [f"param/{chr(97 + at)}{chr(97 + at // 2)}" for at in range(40)]
    run = write(tmp_path / "run", keys=(*KEYS, *blocks, *names, *others))
    shown = in_terminal("show", "run", folder=tmp_path, columns=100).plain
    lines = shown.splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith("verdict  nonfinite: at step 20 param_grad/w has 2 NaN")
    assert "param/block[0..59]" in shown
    assert "gradscope show run --full" in shown
    assert len(in_terminal("show", "run", "--full", folder=tmp_path, columns=100).plain.splitlines()) > 200
    assert "param/block7" in gradscope("show", run, folder=tmp_path).output  # a pipe has everything
    watched = in_terminal("watch", "run", "--once", folder=tmp_path, columns=100).plain
    assert "scan[0..59]" in watched
    assert re.search(r"recorded steps, on one logarithmic scale of \S+ to \S+\n", watched)


def test_watch_shows_why_a_run_diverged_among_the_last_alarms(tmp_path: Path) -> None:
    with HistoryWriter(write(tmp_path / "run"), from_step=30, facts={}) as history:
        for step, rule in enumerate(("grad-spike", "diverging", "dying", "stuck", "update-ratio"), start=30):
            history.alarm(Alarm(step=step, rule=rule, why=f"of step {step}"))
    shown = gradscope("watch", "run", folder=tmp_path).output.partition("Alarms (")[2].splitlines()
    assert [line.split()[0] for line in shown] == ["3", "nonfinite", "stuck", "update-ratio"]
    with sqlite3.connect(tmp_path / "run" / "history.sqlite") as connection:
        connection.execute("DELETE FROM alarms WHERE rule = 'nonfinite'")
    shown = gradscope("watch", "run", folder=tmp_path).output.partition("Alarms (")[2].splitlines()
    assert [line.split()[0] for line in shown] == ["3", "diverging", "stuck", "update-ratio"]
    assert len(gradscope("watch", "run", "--json", folder=tmp_path).json["alarms"]) == 5


@pytest.mark.parametrize("height", [24, 60])
def test_a_terminal_shows_a_step_on_one_screen_and_all_of_it_in_full(tmp_path: Path, height: int) -> None:
    names = [f"{family}/layer{at}" for family in ("activation", "param", "slot/mu") for at in range(60)]
    write(tmp_path / "run", keys=(*KEYS, *names))
    step = ("show", "run", "--step", 10)
    shown = in_terminal(*step, folder=tmp_path, columns=100, LINES=str(height)).plain
    assert len(shown.splitlines()) <= min(height - 1, 40)
    assert "verdict  nonfinite: at step 20 param_grad/w has 2 NaN" in shown
    assert shown.count(" of 61)") == 3
    assert "gradscope show run --step 10 --full" in shown
    for more in (("--full",), ("--select", "layer*"), ("--families", "activation"), ("--sort", "l2")):
        assert "layer59" in in_terminal(*step, *more, folder=tmp_path, columns=100).plain
    assert "layer59" in gradscope(*step, folder=tmp_path).output  # a pipe has everything


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--step", 11), "step 11 was not recorded"),
        (("--tensor", "param/v"), "the run has no tensor param/v"),
        (("--select", "v*"), "pattern 'v*' selects nothing"),
        (("--tensor", "los"), "; the numbers of each step are loss, examples"),
        (("--tensor", "param/ww"), "? The numbers of each step are loss, examples"),
        (("--families", "clipped_grad"), "without --clip and --multiply the optimizer gets param_grad as it is"),
        (("--families", "state"), "it has param, param_grad, update, activation, activation_grad, slot"),
        (("--ledger",), "--ledger is of dumps"),
        (("--sort", "slop"), "did you mean slope"),
        (("--step", 10, "--tensor", "param/w"), "contradict each other"),
    ],
)
def test_what_a_run_does_not_have_is_one_message(run: Path, options: tuple[Any, ...], message: str) -> None:
    done = gradscope("show", run, *options, folder=run)
    assert (done.status, message in done.errors) == (2, True), done.errors


def test_the_trends_say_of_which_statistic_they_are_at_eighty_columns(tmp_path: Path) -> None:
    write(tmp_path / "run", keys=tuple(f"activation_grad/{'block' * 8}{number}/projection" for number in "ab"))
    shown = in_terminal("show", "run", folder=tmp_path, columns=80).plain
    heading, line = (each.split() for each in shown.partition("Trends (")[2].splitlines()[1:3])
    assert heading[:2] == ["tensor", "statistic"]
    assert line[1] == "l2"


def test_the_history_of_a_run_is_answered_by_the_folder_to_name(run: Path) -> None:
    hint = "hint: name the folder of the run, ., and not its history"
    for command in (("watch",), ("compare", "."), ("export", "--to", "csv")):
        done = gradscope(*command, "history.sqlite", folder=run)
        assert done.errors.splitlines()[-1] == hint, done.errors
    shown = gradscope("show", run / "history.sqlite", folder=run)
    assert shown.status == 3
    assert f"it is an SQLite database\nhint: name the folder of a training run, {run}, and" in shown.errors


@pytest.mark.parametrize(
    ("saved", "hint"),
    [
        ("alarm-000015", "'gradscope show alarm-000015' shows what its alarm saved"),
        (None, "all that is known of it is its alarm, nonfinite"),
        ("../elsewhere", "all that is known of it is its alarm, nonfinite"),
    ],
)
def test_a_step_that_only_an_alarm_has_is_answered_by_what_that_saved(run: Path, saved: str | None, hint: str) -> None:
    connection = sqlite3.connect(run / "history.sqlite")
    insert = "INSERT INTO alarms (step, rule, why, folder) VALUES (15, 'nonfinite', 'x', ?)"
    connection.execute(insert, (saved,))
    connection.commit()
    connection.close()
    done = gradscope("show", ".", "--step", 15, folder=run)
    assert done.status == 2
    assert done.errors.endswith(f"step 15 was not recorded\nhint: {hint}; the nearest recorded are 10 and 20\n"), (
        done.errors
    )


def test_a_dump_has_no_steps(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(2))
    done = gradscope("show", "a.npz", "--step", 3, folder=tmp_path)
    assert (done.status, "--step is of a training run" in done.errors) == (2, True)


@pytest.mark.slow
def test_reading_a_run_imports_no_jax(run: Path) -> None:
    lines = ["compare run run", "watch run --once", "export run --to csv", "show run"]
    program = (
        "import sys, gradscope as gs; run = gs.load('run'); run.at(10).table(); run.series('param/w', 'l2')\n"
        "from gradscope.cli.program import run as command\n"
        f"for line in {lines}:\n    sys.argv = ['gradscope', *line.split()]; assert command(None) == 0\n"
        "print(sorted({'jax', 'jaxlib'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=run.parent, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\n[]\n"), done.stderr


def test_a_history_that_is_being_written_can_be_read(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, from_step=0, facts={}) as history:
        history.describe({}, map(row, KEYS))
        history.write(lambda: record(0))
        history.flush()
        with gs.load(tmp_path) as found:
            history.write(lambda: record(10))
            history.flush()
            assert found.steps["step"].tolist() == [0, 10]
    with gs.load(tmp_path) as found:  # a reader at the end was no obstacle
        assert found.steps["step"].tolist() == [0, 10]


def test_reading_leaves_no_files(run: Path) -> None:
    before = sorted(run.iterdir())
    with gs.load(run) as found:
        assert len(found.steps["step"]) == 4
    assert sorted(run.iterdir()) == before


def test_the_loss_of_every_step_is_shown_also_where_the_step_was_not_recorded(tmp_path: Path) -> None:
    run, losses = tmp_path / "run", [4.0, 3.0, 8.0, float("inf"), float("nan")]
    run.mkdir()
    with HistoryWriter(run, from_step=0, facts={}) as history:
        history.describe({}, map(row, KEYS))
        history.write(lambda: record(0))
        for step, loss in enumerate(losses[1:], start=1):
            history.loss(step, loss)
    with gs.load(run) as found:
        assert found.steps["step"].tolist() == [0]
        np.testing.assert_array_equal(found.losses["step"], range(5))
        np.testing.assert_array_equal(found.losses["loss"], losses)
    shown = in_terminal("show", "run", folder=tmp_path, columns=80).plain
    assert "4.00 to not a number from step 3 on  ▂▁█!!" in shown
    assert "5 taken, 1 recorded, the last is step 0" in shown
    assert gradscope("show", "run", "--json", folder=tmp_path).json["loss"] == {"first": 4.0}
    rows = gradscope("show", "run", "--tensor", "loss", "--json", folder=tmp_path).json["rows"]
    assert [each["step"] for each in rows] == list(range(5))
    assert [each.get("loss") for each in rows] == [4.0, 3.0, 8.0, "Infinity", None]
    assert (
        "step 2 was not recorded but for its loss, 8\n" in gradscope("show", "run", "--step", 2, folder=tmp_path).errors
    )
    assert "the loss is known up to step 4" in gradscope("watch", "run", "--once", folder=tmp_path).output
    exported = gradscope("export", "run", "--to", "csv", folder=tmp_path).output.splitlines()
    assert [line for line in exported if ",loss," in line] == [
        "0,step,,loss,4.0", "1,step,,loss,3.0", "2,step,,loss,8.0", "3,step,,loss,inf",
    ]  # fmt: skip


def test_losses_are_on_the_disk_while_no_step_is_recorded_and_where_the_loop_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        with HistoryWriter(tmp_path, from_step=0, facts={}) as history:
            monkeypatch.setattr("gradscope.history.history_writer.time.monotonic", lambda: 1e12)  # a second later
            history.loss(0, 4.0)
            deadline = time.perf_counter() + 20
            while not (known := gs.load(tmp_path).losses["loss"].tolist()) and time.perf_counter() < deadline:
                pass
            assert known == [4.0]
            monkeypatch.undo()
            history.loss(1, 3.0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with gs.load(tmp_path) as found:
        assert found.losses["loss"].tolist() == [4.0, 3.0]


def test_a_history_of_an_older_version_is_read_and_continued(run: Path) -> None:
    sql("DROP TABLE losses", "PRAGMA user_version=1")(run / "history.sqlite")
    with gs.load(run) as found:
        np.testing.assert_array_equal(found.losses["loss"], [4, 3, np.nan, 1.1])
    with HistoryWriter(run, from_step=15, facts={}) as history:
        history.loss(15, 2.5)
    with gs.load(run) as found:
        assert found.losses["step"].tolist() == [0, 10, 15]
        assert found.losses["loss"].tolist() == [4, 3, 2.5]


def test_continuing_forgets_what_comes_later(run: Path) -> None:
    with RunFolder(run), HistoryWriter(run, from_step=15, facts={}) as history:
        history.describe({}, map(row, KEYS))
        history.write(lambda: record(15))
    with gs.load(run) as found:
        assert found.steps["step"].tolist() == found.losses["step"].tolist() == [0, 10, 15]
        assert found.alarms == ()


def test_folders_of_alarms_that_the_history_forgot_are_kept_and_do_not_count(tmp_path: Path) -> None:
    names = [f"alarm-{step:06}" for step in (5, 8, 100)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "alarm.json").write_text("{}", encoding="utf-8")
    with RunFolder(tmp_path) as folder, HistoryWriter(tmp_path, from_step=0, facts={}) as history:
        for name, step in zip(names, (5, 8, 100), strict=True):
            history.alarm(Alarm(step=step, rule="stuck", why="did not change", folder=name))
        assert folder.left_alarms(history.alarm_folders()) == []
        history.forget(50)
        assert folder.left_alarms(history.alarm_folders()) == [names[2]]
        assert folder.keep_alarms(1, history.alarm_folders()) == [names[0]]
    assert sorted(path.name for path in tmp_path.glob("alarm-*")) == names[1:]


@pytest.mark.parametrize(
    ("number", "kept"), [(1, [5]), (2, [1, 5]), (3, [1, 4, 5]), (5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])]
)
def test_the_folder_of_the_first_alarm_is_kept_beside_the_last(tmp_path: Path, number: int, kept: list[int]) -> None:
    saved = [f"alarm-{step:06}" for step in range(1, 6)]
    for at, name in enumerate(saved, start=1):
        (tmp_path / name).mkdir()
        with RunFolder(tmp_path) as folder:
            folder.keep_alarms(number, saved[:at])
    assert sorted(path.name for path in tmp_path.glob("alarm-*")) == [saved[step - 1] for step in kept]


def test_a_run_is_not_replaced_where_the_new_one_reads_its_checkpoint(run: Path) -> None:
    checkpoint = run / "state-000007.npz"
    checkpoint.touch()
    before = sorted(run.iterdir())
    with RunFolder(run) as folder, pytest.raises(UsageError, match=r"its state-000007.npz is read"):
        folder.clear([run.parent / "other.npz", run / ".." / run.name / checkpoint.name])
    assert sorted(each for each in run.iterdir() if each.name != ".lock") == before
    (run / "trace-000005" / "plugins").mkdir(parents=True)
    (run / "trace-000006").symlink_to(run.parent)
    with RunFolder(run) as folder:
        folder.clear()
        folder.set_aside.remove()
    assert sorted(each.name for each in run.iterdir()) == ["trace-000006"]


@pytest.mark.slow
def test_ten_thousand_rows_take_little_room(tmp_path: Path) -> None:
    keys = tuple(f"param/layer{number}/kernel" for number in range(100))
    write(tmp_path / "run", tuple(range(100)), keys)
    assert (tmp_path / "run" / "history.sqlite").stat().st_size < 1_000_000  # 60 MB for six hundred thousand
    rows = json.loads(gradscope("show", tmp_path / "run", "--json", folder=tmp_path).output)["rows"]
    assert len(rows) == 100


def sql(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.executescript("PRAGMA writable_schema=ON;" + ";".join(statements))
        connection.close()

    return change


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def replaced_by_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


STRANGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a trigger": (sql("CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END"), "the trigger t"),
    "a view": (sql("CREATE VIEW v AS SELECT load_extension('x')"), "the view v"),
    "a view in place of a table": (sql("DROP TABLE steps", "CREATE VIEW steps AS SELECT 1"), "the view steps"),
    "an index on an expression": (sql("CREATE INDEX i ON steps (abs(loss))"), "the index i"),
    "a generated column": (
        sql("ALTER TABLE steps ADD COLUMN more AS (loss + 1)"), "the table steps"),
    "a virtual table": (sql("DROP TABLE units", "CREATE VIRTUAL TABLE units USING fts5(a)"), "the table units"),
    "no table": (sql("DROP TABLE alarms"), "a table that is missing"),
    "a text for a number": (sql("UPDATE steps SET loss = 'low'"), "its table steps is of a wrong type"),
    "a blob for a number": (sql("UPDATE stats SET l2 = x'00'"), "its table stats is of a wrong type"),
    "a blob for a text": (sql("UPDATE tensors SET name = x'00'"), "its table tensors is of a wrong type"),
    "no name": (sql("UPDATE tensors SET name = NULL"), "has no name"),
    "a step beyond all": (sql(f"UPDATE steps SET step = {2**63 - 1} WHERE step = 0"), "of a wrong type, sign or size"),
    "a norm below zero": (sql("UPDATE stats SET l2 = -1.5 WHERE step = 10"), "of a wrong type, sign or size"),
    "a count below zero": (sql("UPDATE stats SET nan = -1 WHERE step = 10"), "of a wrong type, sign or size"),
    "no number of steps": (sql("INSERT INTO run VALUES ('steps taken', '1e9')"), "states as steps taken '1e9'"),
    "no shape": (sql("UPDATE tensors SET shape = '[1, x]'"), "a shape in its table tensors is none"),
    "a text for a histogram": (
        sql("INSERT INTO histograms VALUES (0, 0, 'many')"), "its table histograms is of a wrong type"),
    "a histogram of no bins": (sql("INSERT INTO histograms VALUES (0, 0, zeroblob(8))"), "bins or counts"),
    "not UTF-8": (sql("UPDATE tensors SET name = CAST(x'ff' AS TEXT)"), "it is not a history that can be read"),
    "another program's": (sql("PRAGMA application_id=7"), "another program wrote it"),
    "a newer version": (sql("PRAGMA user_version=3"), "its version is 3, and this gradscope reads 2"),
    "an older version with newer tables": (sql("PRAGMA user_version=1"), "the table losses"),
    "a text for a loss": (sql("UPDATE losses SET loss = 'low'"), "its table losses is of a wrong type"),
    "a long text": (sql("UPDATE run SET value = hex(zeroblob(1 << 20))"), "it is not a history that can be read"),
    "text": (content(lambda _: b"no database"), "it is no file of SQLite"),
    "nothing": (content(lambda _: b""), "it is no file of SQLite"),
    "cut short": (content(lambda whole: whole[:5000]), ""),
    "a pipe": (replaced_by_a_fifo, "it is not a regular file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_history_is_refused(run: Path, kind: str) -> None:
    change, message = STRANGE[kind]
    change(run / "history.sqlite")
    done = gradscope("show", run, *(("--tensor", KEYS[0]) if "histogram" in kind else ()), folder=run)
    assert (done.status, done.errors.count("error:")) == (3, 1), done.errors + done.output
    assert message in done.errors
    assert str(run) in done.errors


def in_log(run: Path, log: bytes) -> None:
    """Put a write-ahead log beside a history that says that it has one."""
    path = run / "history.sqlite"
    header = bytearray(path.read_bytes())
    header[18:20] = b"\x02\x02"
    path.write_bytes(header)
    (run / "history.sqlite-wal").write_bytes(log)


def logged(folder: Path, *statements: str) -> bytes:
    """The write-ahead log of a database that somebody else made, with what these statements change."""
    folder.mkdir()
    connection = sqlite3.connect(folder / "other.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    for statement in statements:
        connection.execute(statement)
    log = (folder / "other.sqlite-wal").read_bytes()
    connection.close()
    return log


def test_a_log_of_somebody_else_is_refused_or_harmless(run: Path, tmp_path: Path) -> None:
    """A log is part of the database: what it brings in is checked as the rest is."""
    log = logged(tmp_path / "other", "CREATE TABLE t (a)", "CREATE VIEW v AS SELECT load_extension('x')")
    in_log(run, log)
    for command in (("show",), ("watch",), ("export", "--to", "csv"), ("compare", run)):
        name, *options = command
        done = gradscope(name, run, *options, folder=run)
        assert (done.status, done.errors.count("error:")) == (3, 1), done.errors


@pytest.mark.parametrize("length", [0, 31, 32, 5000])
def test_a_log_that_is_torn_is_ignored_from_there_on(run: Path, tmp_path: Path, length: int) -> None:
    in_log(run, logged(tmp_path / "other", "CREATE TABLE t (a)")[:length])
    with suppress(gs.DumpError), gs.load(run) as found:
        assert found.steps["step"].tolist() == list(STEPS)


def test_a_trigger_runs_nothing_and_a_history_is_never_changed(run: Path) -> None:
    sql("CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM steps; END")(run / "history.sqlite")
    before = (run / "history.sqlite").read_bytes()
    for command in (("show",), ("watch",), ("export", "--to", "csv"), ("compare", run)):
        name, *options = command
        assert gradscope(name, run, *options, folder=run).status == 3
    assert (run / "history.sqlite").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_history_that_is_cut_short_anywhere_is_refused(run: Path, share: float) -> None:
    path = run / "history.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    done = gradscope("show", run, folder=run)
    assert (done.status, done.errors.count("error:")) == (3, 1), done.errors + done.output


def test_a_history_without_a_log_is_read_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without shared memory: SQLite answers the request for a log with the journal that it has."""

    class NoLog(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(statement.replace("journal_mode=WAL", "journal_mode=DELETE"), *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=NoLog))
    with HistoryWriter(tmp_path, from_step=0, facts={"model": "net"}) as history:
        history.describe({}, map(row, KEYS))
        for step in (0, 10):
            history.write(lambda step=step: record(step))
            history.flush()
            assert not (tmp_path / "history.sqlite-wal").exists()
            with gs.load(tmp_path) as found:
                assert found.steps["step"].tolist() == list(range(0, step + 1, 10))
        killed = (tmp_path / "history.sqlite").read_bytes()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "history.sqlite").write_bytes(killed)
    with gs.load(tmp_path / "copy") as found:
        assert found.steps["step"].tolist() == [0, 10]


def test_a_writer_without_a_log_that_is_killed_leaves_whole_steps(tmp_path: Path) -> None:
    """A process that is killed within a transaction, its journal still there: the next reader sees what was before."""
    program = (
        "import os, sqlite3; from pathlib import Path;"
        "c = sqlite3.connect('run/history.sqlite', isolation_level=None);"
        "c.execute('PRAGMA journal_mode=DELETE'); c.execute('PRAGMA cache_size=1');"
        "c.execute('BEGIN IMMEDIATE'); c.execute('UPDATE stats SET l2 = 1e9');"
        "c.execute('DELETE FROM steps'); os._exit(9)"
    )
    keys = tuple(f"param/layer{number}/kernel" for number in range(60))
    run = write(tmp_path / "run", tuple(range(20)), keys)
    with gs.load(run) as found:
        before = found.series(keys[0], "l2")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    assert done.returncode == 9
    assert (run / "history.sqlite-journal").stat().st_size > 0
    with RunFolder(run), HistoryWriter(run, from_step=20, facts={}) as history:  # as --resume does
        history.describe({}, map(row, keys))
    with gs.load(run) as found:
        np.testing.assert_array_equal(found.series(keys[0], "l2"), before)
        assert len(found.steps["step"]) == 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_are_refused_or_harmless(run: Path, seed: int) -> None:
    path = run / "history.sqlite"
    content, generator = path.read_bytes(), np.random.default_rng(seed)
    for _ in range(100):
        damaged = bytearray(content)
        for at in generator.integers(0, len(content), 3):
            damaged[at] = generator.integers(256)
        path.write_bytes(damaged)
        with suppress(gs.DumpError, gs.UsageError), gs.load(run) as found:  # a step may have become unknown
            list(used(found))


def used(found: gs.Run) -> Iterator[object]:
    yield found.alarms
    for step in found.steps["step"][:3]:
        yield found.at(int(step))
    for key in found.keys():  # noqa: SIM118 - a run is no mapping
        yield found.series(key, "l2")


@pytest.mark.slow
def test_a_small_file_that_takes_endless_work_is_refused(run: Path) -> None:
    """Interior pages whose children are all one page: a scan of 2^40 rows in a file of a few pages."""
    path = run / "history.sqlite"
    connection = sqlite3.connect(path)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'steps'").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    pages = bytearray(path.read_bytes())
    leaf = bytes(pages[(root - 1) * size : root * size])
    levels, wide = 10, 300
    first = len(pages) // size + 1
    for level in range(levels):  # the first level is the root's new content, the last points to the old leaf
        child = first + level
        page = bytearray(size)
        cells = b"".join(child.to_bytes(4, "big") + bytes([number % 100]) for number in range(wide))
        start = size - len(cells)
        page[0:1], page[3:5], page[5:7] = b"\x05", wide.to_bytes(2, "big"), start.to_bytes(2, "big")
        page[8:12], page[start:] = child.to_bytes(4, "big"), cells
        for number in range(wide):
            page[12 + 2 * number : 14 + 2 * number] = (start + 5 * number).to_bytes(2, "big")
        if level == 0:
            pages[(root - 1) * size : root * size] = page
        else:
            pages += page
    pages += leaf
    pages[28:32] = (len(pages) // size).to_bytes(4, "big")
    path.write_bytes(pages)
    done = gradscope("show", run, folder=run)
    assert (done.status, "it is damaged" in done.errors) == (3, True), done.errors
