"""The supervisor is a parent process that gives a command which runs a model the right exit status, however it ends.

A library may end the process without an exception: XLA calls `_exit(1)` for an unknown flag and `abort()` for a failed
check, JAX's runtime aborts when another process of a distributed run dies, and a model may call `os._exit(0)`. A shell
would read these as "different", a signal and success. So a command that runs a model does so in a child process. Before
the child ends, it records its exit status in memory that both share; the parent exits with that status. A child that
ends without a record was ended by something else, which is status 5.

Why a process (2026-11): `_exit` and `abort` in native code run no handler of Python's. The alternatives, a handler in C
and a check of XLA_FLAGS in advance, cover single causes. The fork is cheap because it comes before anything is
imported, and the parent does nothing but wait.

Signals: the parent passes on what was sent to it alone. What a terminal sends reaches the child by itself. If the
parent is killed, the system kills the child. A child that a signal ends which is no crash (SIGKILL, SIGQUIT) ends its
parent with the same signal.

What the child leaves behind, such as a process that a loss forked and that hangs in a lock of JAX's, would outlive the
command and keep its pipes open. The system gives it to the parent (Linux), which ends it. A process that has begun a
session of its own, as a server does that is meant to stay, stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from gradscope.cli.interrupts import MORE_PROCESSES, restoring
from gradscope.errors import MachineError

#: The commands that run a model, or trace one.
_RUNNING: Final = frozenset({"dump", "train", "isolate", "calibrate", "inspect", "check"})
#: Commands that run one with an option.
_RUNNING_WITH: Final = {"compare": "--isolate", "mesh": "--run-on"}

#: Signals by which native code ends its process when it fails.
_CRASHES: Final = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"})

_STDERR: Final = 2

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

#: `si_code` of a signal that the kernel sent, for a key of the terminal, and not a process.
_FROM_KERNEL: Final = 0x80

#: `prctl`'s requests for a signal when the parent ends, and to become the parent of orphans.
_SET_PARENT_DEATH_SIGNAL: Final = 1
_SET_CHILD_SUBREAPER: Final = 36

#: Seconds in which processes that were left behind may end by themselves, and in which they have to end when killed.
_GRACE_SECONDS: Final = 1.0
_KILL_SECONDS: Final = 2.0


def runs_model(arguments: Sequence[str]) -> bool:
    """Returns whether a command line runs a model or traces one.

    Args:
        arguments: The command line without the program's name.
    """
    command = arguments[0] if arguments else ""
    option = _RUNNING_WITH.get(command)
    return command in _RUNNING or (option is not None and any(each.startswith(option) for each in arguments))


def is_started_by_command(arguments: Sequence[str]) -> bool:
    """Returns whether another command of gradscope has started a command line, which is to end with it.

    Args:
        arguments: The command line without the program's name.
    """
    return arguments[:1] == ["mesh"] and runs_model(arguments)


def supervise(
    guard: Callable[[Callable[[int], None]], object] | None = None, *, with_parent: bool = False
) -> Callable[[int], None]:
    """Continues in a child process, and ends this one with the child's exit status. It is called before other threads.

    Args:
        guard: Is called in the child with what this returns, before a signal arrives there; None for nothing.
        with_parent: Whether both end when the process that started this one does.

    Returns:
        A function, in the child only, that records the exit status with which the child is about to end.

    Raises:
        MachineError: The system gives no more processes.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS: an abort of a library keeps its own status there
        return _ignore
    import mmap

    if with_parent:
        _end_with_parent(os.getppid())
    # Shared memory and no pipe: a model may close every descriptor.
    record = mmap.mmap(-1, 2)
    waited = {*_PASSED_ON, signal.SIGCHLD}
    # A signal that arrives between the fork and the wait is kept for the wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    parent, child = os.getpid(), _forked(before)
    if child:
        _prctl(_SET_CHILD_SUBREAPER, 1)
        status = _status_of(child, waited)
        _end_orphans()
        _end_as(status, record)
    _end_with_parent(parent)
    recording = os.getpid()

    def ends_with(status: int) -> None:
        if os.getpid() == recording:  # a process that the model forked shares the record
            record[:] = bytes((1, status))

    if guard is not None:
        guard(ends_with)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ends_with


def _forked(mask: set[signal.Signals | int]) -> int:
    """Forks, and returns what `os.fork` does; where it fails, no signal stays blocked but those of a mask."""
    try:
        return os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise MachineError(f"no process can be started: {error.strerror}", hint=MORE_PROCESSES) from error


def _ignore(status: int) -> None:
    """Records nothing."""


def _end_with_parent(parent: int) -> None:
    """Makes the system kill this process when its parent ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if sys.platform == "linux" and os.getppid() != parent:  # it ended before the request
        os._exit(128 + signal.SIGKILL)


def _prctl(request: int, argument: int) -> None:
    """Makes a request to the system, where it is Linux."""
    import ctypes

    libc: Any = ctypes.CDLL(None)
    if sys.platform == "linux":
        libc.prctl(request, argument)


def _end_orphans() -> None:
    """Ends the processes of this session that the child left behind."""
    begin = time.monotonic()
    while (waiting := time.monotonic() - begin) < _GRACE_SECONDS + _KILL_SECONDS and _has_children():
        orphans = [each for each in _children() if _session(each) == os.getsid(0)]
        if not orphans:
            return
        for each in orphans if waiting > _GRACE_SECONDS else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.01)


def _has_children() -> bool:
    """Returns whether there are processes whose parent this one is, after those that have ended are let go."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> Iterator[int]:
    """Yields the processes whose parent this one is, where the system states it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may have anything in it; the state and the parent follow.
            if int(path.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                yield int(path.parent.name)


def _session(process: int) -> int:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return 0


def _status_of(child: int, waited: set[signal.Signals]) -> int:
    """Waits for a child, passing signals on, and returns its exit status; minus the signal that ended it."""
    while True:
        found = signal.sigwaitinfo(waited)
        if found.si_signo != signal.SIGCHLD:
            # A terminal that is closed tells the first process of its session alone.
            if found.si_code != _FROM_KERNEL or found.si_signo == signal.SIGHUP:
                os.kill(child, found.si_signo)
            continue
        # SIGCHLD also says that the child stopped or went on, and several of them arrive as one.
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _end_as(status: int, record: Any) -> NoReturn:
    """Ends this process as its child ended."""
    if record[0]:
        os._exit(record[1])
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(_STDERR, restoring(_STDERR))
    name = signal.Signals(-status).name if status < 0 else ""
    if name == "SIGXCPU":
        _end_with("gradscope: error: the limit on CPU time is reached", "raise it (ulimit -t), or run less")
    if status < 0 and name not in _CRASHES:
        signal.signal(-status, signal.SIG_DFL) if name not in {"SIGKILL", "SIGSTOP"} else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        os.kill(os.getpid(), -status)
    ended = f"by {name}" if name else f"with status {status}"
    causes = "a wrong flag in XLA_FLAGS does this, a limit (ulimit -a), or that another process of the run died"
    _end_with(
        f"gradscope: error: a library or the model ended the process {ended}, without an exception",
        f"what it wrote before that may say why; {causes}",
    )


def _end_with(message: str, hint: str) -> NoReturn:
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(_STDERR, f"{message}\nhint: {hint}\n".encode())
    os._exit(MachineError.exit_code)
