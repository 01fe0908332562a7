"""`gradscope watch`: live on a terminal while another process writes, and once everywhere else."""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradscope.history.history_rows import Alarm, StepRecord
from gradscope.history.history_writer import HistoryWriter
from tests.integration.command import gradscope
from tests.integration.training.histories import KEYS, record, row, write

fcntl = pytest.importorskip("fcntl", reason="a pseudo-terminal is one of POSIX")
pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")

COLUMNS, LINES = 80, 24
DEADLINE = 12.0
#: Makes standard input the terminal that Ctrl-C comes from, then becomes another program.
CONTROLLED = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
#: What moves the cursor, and colours.
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`gradscope watch` under a pseudo-terminal."""

    def __init__(self, run: Path) -> None:
        self.descriptor, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        line = [sys.executable, "-P", "-m", "gradscope", "watch", str(run)]
        self.child = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, *line], stdin=end, stdout=end, stderr=end, start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color", "PYTHONUTF8": "1"},
        )  # fmt: skip
        os.close(end)
        self.shown = ""

    def read(self, seconds: float) -> str:
        """What is printed until nothing was for so long."""
        found = b""
        while select.select([self.descriptor], [], [], seconds)[0]:
            try:
                found += os.read(self.descriptor, 1 << 16)
            except OSError:  # the terminal has no other end any more
                break
        self.shown += found.decode("utf-8", "replace")
        return found.decode("utf-8", "replace")

    def wait_for(self, words: str) -> None:
        end = time.monotonic() + DEADLINE
        while words not in ESCAPE.sub("", self.shown):
            assert time.monotonic() < end, self.shown
            self.read(0.1)

    def press(self, key: str) -> None:
        os.write(self.descriptor, key.encode())

    def ended(self) -> int:
        """The exit status, after all of the output was read."""
        self.read(2)
        return self.child.wait(DEADLINE)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def terminal(run: Path) -> Iterator[Terminal]:
    with HistoryWriter(run, from_step=0, facts={}):
        pass
    made = Terminal(run)
    yield made
    made.child.kill()
    made.child.wait()
    os.close(made.descriptor)


def echoes(terminal: Terminal) -> bool:
    """Whether the terminal shows what is typed, as it did before."""
    return bool(termios.tcgetattr(terminal.descriptor)[3] & termios.ECHO)


def test_steps_appear_as_they_are_written_and_nothing_is_drawn_between(run: Path, terminal: Terminal) -> None:
    terminal.wait_for("none was recorded yet")
    with HistoryWriter(run, from_step=0, facts={}) as history:
        history.describe({}, map(row, KEYS))
        for step in (0, 10):
            history.write(lambda step=step: record(step))
            history.flush()
            terminal.wait_for(f"step  {step}\r")
        assert "gradient" in terminal.shown
        assert re.search("[▁▄█]", terminal.shown)  # as --once has them
        terminal.read(0.5)  # the rest of what is drawn
        assert terminal.read(1.5) == ""  # quiet: nothing was written
        history.alarm(Alarm(step=10, rule="nonfinite", why="has 2 NaN", key="param_grad/w"))
        terminal.wait_for("at step 10 param_grad/w has 2 NaN")
    assert max(map(len, ESCAPE.sub("", terminal.shown).replace("\r", "").split("\n"))) <= COLUMNS
    terminal.read(1.0)  # the end of the log is a change of the files
    terminal.press("x")
    assert terminal.read(0.7) == ""
    terminal.press("q")
    assert terminal.ended() == 0


def test_ctrl_c_ends_it_too(terminal: Terminal) -> None:
    terminal.wait_for("none was recorded yet")
    assert not echoes(terminal)
    terminal.press("\x03")
    terminal.wait_for("interrupted")
    assert echoes(terminal)
    assert terminal.ended() == 130


def test_off_a_terminal_it_prints_the_present_state(tmp_path: Path) -> None:
    write(tmp_path / "run")
    shown = gradscope("watch", "run", folder=tmp_path)
    assert (shown.status, shown.output) == (0, gradscope("watch", "run", "--once", folder=tmp_path).output)
    assert "nonfinite  at step 20 param_grad/w has 2 NaN" in shown.output
    assert re.search(r"^loss +1.10 ", shown.output, re.MULTILINE)
    found = gradscope("watch", "run", "--json", folder=tmp_path).json
    assert (found["step"], found["loss"], found["alarms"][0]["rule"]) == (29, pytest.approx(1.1), "nonfinite")
    assert found["rows"] == [{"name": "layer", "family": "activation_grad", "rms": 1.0, "change": 1.0}]


def test_the_layer_that_changed_most_is_first_and_what_is_not_finite_before_it(tmp_path: Path) -> None:
    rms = {"a": [1.0, 1.0, 1.1], "b": [1.0, 1.0, 50.0], "c": [1.0, 1.0, 1.0], "d": [1.0, 1.0, 1.0]}
    keys = [f"activation_grad/{name}" for name in rms]
    with HistoryWriter(tmp_path, from_step=0, facts={}) as history:
        history.describe({}, map(row, keys))
        for step in range(3):
            stats = {f"activation_grad/{name}": {"rms": values[step], "nan": int(name == "d" and step == 2), "inf": 0}
                     for name, values in rms.items()}  # fmt: skip
            history.write(lambda step=step, stats=stats: StepRecord(numbers={"step": step}, stats=stats))
    rows = gradscope("watch", tmp_path, "--json", folder=tmp_path).json["rows"]
    assert [row["name"] for row in rows] == ["d", "b", "a", "c"]
    assert rows[1]["change"] == 50
    text = gradscope("watch", tmp_path, folder=tmp_path).output
    assert re.search(r"^b .*▁▁█$", text, re.MULTILINE)
    assert re.search(r"^d .*!$", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "status"), [("none", 3), ("file", 3)])
def test_what_is_no_run_is_one_message(tmp_path: Path, name: str, status: int) -> None:
    (tmp_path / "file").write_text("")
    done = gradscope("watch", name, folder=tmp_path)
    assert (done.status, done.errors.count("error:")) == (status, 1), done.errors
    assert f"{name} is no run" in done.errors
