"""Ctrl-C, SIGTERM and SIGHUP in real processes, at moments when Python itself would not listen."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Seconds from signal to end: one on a machine of one's own, two where others compute, too.
PROMPTLY = 2.0

#: Every program opens a partial file, promises to remove it, tells when its stage begins, and never ends by itself.
PROLOGUE = """
import sys, time
from pathlib import Path
from gradscope.cli.interrupts import Interrupts

interrupts = Interrupts()
partial = Path("partial")

def begin():
    partial.write_bytes(b"begun")
    interrupts.on_interrupt(partial.unlink)
    print("begun", flush=True)
"""

STAGES = {
    "waiting": """
with interrupts:
    begin()
    time.sleep(60)
""",
    "writing": """
import itertools
import numpy as np
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.writer import DumpWriter
facts = dict(shape=(1000,), dtype="float32", array=np.ones(1000, np.float32), stats={}, site=SiteFacts(index=0))
from gradscope.dump.storage.writing.unpublished import remove_unpublished
with interrupts, DumpWriter("run.npz") as writer:
    interrupts.on_interrupt(remove_unpublished)
    begin()
    for number in itertools.count():
        writer.add(Record(family="activation", name=str(number), **facts))
""",
    "matching": """
import re
with interrupts:
    begin()
    re.fullmatch("(a+)+b", 100 * "a")
""",
    "running": """
import jax
with interrupts:
    endless = jax.jit(lambda x: jax.lax.while_loop(lambda x: x >= 0, lambda x: 1 - x, x)).lower(0).compile()
    begin()
    jax.block_until_ready(endless(0))
""",
}


@contextmanager
def process(program: str, folder: Path, **streams: int) -> Iterator[subprocess.Popen[str]]:
    """A running program that has begun its stage."""
    command = [sys.executable, "-c", PROLOGUE + program]
    streams = {"stderr": subprocess.PIPE, **streams}
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, **streams) as running:  # type: ignore[call-overload]
        try:
            assert running.stdout.readline() == "begun\n"
            yield running
        finally:
            running.kill()


def interrupted(running: subprocess.Popen[str], number: signal.Signals) -> int:
    """The exit status after a signal, which must come promptly."""
    running.send_signal(number)
    return running.wait(PROMPTLY)


@pytest.mark.parametrize(
    ("stage", "number", "delay", "status"),
    [
        ("waiting", signal.SIGINT, 0.0, 130),
        ("waiting", signal.SIGHUP, 0.0, 129),
        ("writing", signal.SIGTERM, 0.11, 143),
        ("matching", signal.SIGTERM, 0.2, 143),
        ("running", signal.SIGINT, 0.17, 130),
    ],
)
def test_a_signal_ends_the_process_at_once_and_leaves_no_litter(
    tmp_path: Path, stage: str, number: signal.Signals, delay: float, status: int
) -> None:
    with process(STAGES[stage], tmp_path) as running:
        time.sleep(delay)
        assert interrupted(running, number) == status
        assert running.stderr is not None
        assert running.stderr.read() == "gradscope: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_cleanups_run_from_the_last_to_the_first_and_one_that_fails_keeps_none_from_running(tmp_path: Path) -> None:
    program = """
with interrupts:
    log = open("log", "a", buffering=1)
    interrupts.on_interrupt(lambda: log.write("first\\n"))
    interrupts.on_interrupt(lambda: 1 / 0)
    interrupts.on_interrupt(lambda: log.write("last\\n"))
    begin()
    time.sleep(60)
"""
    with process(program, tmp_path) as running:
        assert interrupted(running, signal.SIGINT) == 130
    assert (tmp_path / "log").read_text() == "last\nfirst\n"


def test_a_cleanup_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    program = """
with interrupts:
    interrupts.on_interrupt(lambda: time.sleep(60))
    begin()
    time.sleep(60)
"""
    with process(program, tmp_path) as running:
        assert interrupted(running, signal.SIGTERM) == 143


def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    program = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
with interrupts:
    begin()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
sys.exit(7)
"""
    with process(program, tmp_path) as running:
        assert running.wait(PROMPTLY) == 7


def test_afterwards_signals_mean_what_they_meant_before(tmp_path: Path) -> None:
    program = """
with interrupts:
    pass
try:
    begin()
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(9)
"""
    with process(program, tmp_path) as running:
        assert interrupted(running, signal.SIGINT) == 9


def test_a_signal_that_arrives_twice_for_one_event_is_asked_once(tmp_path: Path) -> None:
    """As from `timeout`, which signals a process and its group; the supervisor passes it on besides."""
    program = """
asked = []
with interrupts, interrupts.asking(asked.append):
    begin()
    while not asked:
        time.sleep(0.01)
    time.sleep(1.5)
    sys.exit(len(asked))
"""
    with process(program, tmp_path) as running:
        for _ in range(3):
            running.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert running.wait(2 * PROMPTLY) == 1


def test_a_signal_is_heard_where_a_loop_of_asyncio_has_taken_its_place(tmp_path: Path) -> None:
    program = """
import asyncio, signal
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, print)
    loop.remove_signal_handler(signal.SIGUSR1)
with interrupts:
    asyncio.run(main())
    begin()
    time.sleep(60)
"""
    with process(program, tmp_path) as running:
        assert interrupted(running, signal.SIGINT) == 130


def test_a_signal_to_a_forked_process_is_none_to_the_command(tmp_path: Path) -> None:
    """As a pool of workers ends its workers."""
    program = """
import os, signal
with interrupts:
    begin()
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(9)
    ended = os.waitpid(child, 0)[1]
    time.sleep(0.3)
    sys.exit(os.WTERMSIG(ended))
"""
    with process(program, tmp_path) as running:
        assert running.wait(PROMPTLY) == signal.SIGTERM


def test_a_terminal_gets_its_cursor_back(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with process(STAGES["waiting"], tmp_path, stderr=theirs) as running:
        assert interrupted(running, signal.SIGINT) == 130
    assert os.read(ours, 1000) == b"\r\x1b[2K\x1b[?25hgradscope: interrupted\r\n"
    os.close(ours)
    os.close(theirs)


def test_nothing_is_written_where_standard_error_was_closed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, signal, time\nfrom gradscope.cli.interrupts import Interrupts\n"
        "file = open('file', 'w')\nassert file.fileno() == 2\n"
        "with Interrupts():\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)\n"
    )
    run = subprocess.run(["sh", "-c", f"{sys.executable} program.py 2>&-"], cwd=tmp_path, check=False, timeout=20)
    assert run.returncode == 143
    assert (tmp_path / "file").read_text() == ""
