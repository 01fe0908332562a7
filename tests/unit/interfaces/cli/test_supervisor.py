"""Where the system gives no more processes, threads or CPU time, a command says so and ends with exit status 5."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from gradscope.cli import interrupts, main
from gradscope.cli.running import supervisor
from gradscope.errors import MachineError


def no_thread(*_: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_no_process_is_a_failure_of_the_machine_and_leaves_no_signal_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(MachineError, match="no process can be started: Resource temporarily unavailable"):
        supervisor.supervise()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_no_thread_for_the_signals_is_a_failure_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    before, ended = signal.getsignal(signal.SIGTERM), []
    assert main._status(ended.append) == 5
    assert ended == [5]
    assert signal.getsignal(signal.SIGTERM) == before
    assert capsys.readouterr().err.splitlines()[0] == "gradscope: error: can't start new thread"


@pytest.mark.parametrize(
    ("initializing", "starts", "expected"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_matrix_library_that_gets_no_threads_is_told_from_an_interrupt(
    initializing: bool, starts: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Any = SimpleNamespace(__spec__=SimpleNamespace(_initializing=initializing))
    monkeypatch.setitem(sys.modules, "numpy", library)
    if not starts:
        monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    assert interrupts._is_of_blas() is expected


def test_the_limit_on_cpu_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def end(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(os, "write", lambda _, data: written.append(data))
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit) as ended:
        supervisor._end_as(-signal.SIGXCPU, bytes(2))
    assert ended.value.code == 5
    assert written[-1].startswith(b"gradscope: error: the limit on CPU time is reached\n")
