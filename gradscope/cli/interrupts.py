"""Interrupts end the process at once on Ctrl-C, SIGTERM and SIGHUP, whatever code is running.

Python's signal handlers run between two of its own instructions. While XLA compiles or computes, that is minutes later,
and an orderly exit would wait for XLA's threads or crash in them. So the signal is received where the operating system
delivers it: Python's C handler writes its number into a socket (`signal.set_wakeup_fd`), a thread reads it, runs the
cleanups, and leaves by `os._exit`. Signals that arrive in Python code take the same path, so that no
`KeyboardInterrupt` is raised that JAX could turn into another error.

A process that a model forks has none of this, although it inherits the handlers and the socket: a signal to it, as a
pool of workers ends its workers, is not one to the command. What a terminal sends to all of them is the command's to
follow: a training run takes a last step on Ctrl-C, for which it needs the workers of its data.

Sharp edges: a cleanup runs in that thread while the main thread goes on, and must be safe there. After the grace period
the process ends whether the cleanups are done or not. Buffered output is lost.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final, NoReturn, Self

#: Seconds that cleanups have before the process ends without them.
GRACE_SECONDS: Final = 0.75

#: Seconds for which the main thread stands aside for the watcher: until the process has ended.
_ASIDE_SECONDS: Final = GRACE_SECONDS + 0.25

#: Seconds after a signal that is asked to come to an end, in which another one is of the same event: `timeout` sends
#: one to a process and to its group, and so does a shell, and the supervisor passes it on.
_SAME_EVENT_SECONDS: Final = 0.5

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: The byte that is read from the socket when the guard ends without a signal; no signal has this number.
_DISMISSED: Final = 0

#: Clears the line that a progress bar was writing and shows the cursor that it hid.
_RESTORE_TERMINAL: Final = b"\r\x1b[2K\x1b[?25h"

#: What to do where the system gives no more processes or threads.
MORE_PROCESSES: Final = "raise the limits on processes and memory (ulimit -u and -v)"

#: The exit status of a `MachineError`, and what is said with it and of an interrupt.
_FAILED: Final = 5
_NO_THREADS: Final = f"gradscope: error: can't start new thread\nhint: {MORE_PROCESSES}\n".encode()
_INTERRUPTED: Final = b"gradscope: interrupted\n"


def restoring(descriptor: int) -> bytes:
    """Returns what a terminal is sent that a progress bar can no longer leave as it was; b"" where there is none."""
    return _RESTORE_TERMINAL if os.isatty(descriptor) else b""


def end_at_once(ends_with: Callable[[int], object] | None = None) -> None:
    """Makes signals end this process, as `Interrupts` do, as soon as Python runs code of its own, without cleanups.

    It is for what comes before `Interrupts` are entered and after they are left, in a process that ends then.

    Args:
        ends_with: Is called with the exit status right before the process ends; None for nothing.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:  # one that follows says nothing more
            signal.signal(each, signal.SIG_IGN)
        try:
            if ends_with is not None:
                ends_with(128 + number)
            _print_message(_INTERRUPTED)
        finally:
            os._exit(128 + number)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


class Interrupts:
    """`Interrupts` is a context manager in which a signal runs cleanups and ends the process with 128 and its number.

    The signals are SIGINT, SIGTERM and SIGHUP. It is entered in the main thread. A signal that is ignored when the
    process starts (`nohup`, a background job of a shell without job control) stays ignored.

    Args:
        ends_with: Is called with the exit status right before the process ends; None for nothing.
    """

    def __init__(self, ends_with: Callable[[int], object] | None = None) -> None:
        import socket  # only here: importing it takes longer than all that comes before, and a signal may arrive

        self._ends_with = ends_with
        self._cleanups: list[Callable[[], object]] = []
        self._ask: Callable[[int], object] | None = None
        self._asked_at = -math.inf
        self._restore = ExitStack()
        # Kept here because the signal handler knows only a file descriptor: a collected socket would close it.
        self._reader, self._writer = socket.socketpair()
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)

    def on_interrupt(self, cleanup: Callable[[], object]) -> None:
        """Registers a function to run if the process is interrupted; the last one registered runs first."""
        self._cleanups.append(cleanup)

    @contextmanager
    def asking(self, ask: Callable[[int], object]) -> Generator[None]:
        """Makes the first signal in the block call a function, and not end the process; the second one ends it.

        Args:
            ask: Receives the number of the signal, in another thread. It asks the main thread to come to an end.
        """
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None

    def __enter__(self) -> Self:
        self._writer.setblocking(False)
        self._restore.callback(
            signal.set_wakeup_fd, signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        )
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._restore.callback(signal.signal, number, signal.signal(number, self._leave_to_watcher))
        try:
            self._watcher.start()
        except RuntimeError:  # the system gives no more threads
            self._restore.close()
            self._reader.close()
            self._writer.close()
            raise
        _ENTERED.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if self not in _ENTERED:  # a process that was forked comes to its end
            return
        _ENTERED.remove(self)
        self._restore.close()
        with contextlib.suppress(OSError):  # the model closed every descriptor
            self._writer.send(bytes([_DISMISSED]))
        self._watcher.join(GRACE_SECONDS)  # it closes the socket: a process about to end looks at what is open

    def forget(self) -> None:
        """Takes the signals from the command, in a process that a model has forked; see the module."""
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            if signal.getsignal(number) == self._leave_to_watcher:
                signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else _leave_to_command)

    def _leave_to_watcher(self, number: int, _frame: FrameType | None) -> None:
        """Lets the watcher run: the C handler writes to the socket only where a handler in Python is installed."""
        with contextlib.suppress(OSError, ValueError):  # the model has closed it
            ours = self._writer.fileno()
            # A loop of asyncio in the model takes the place of the socket, and leaves none.
            if signal.set_wakeup_fd(ours, warn_on_full_buffer=False) != ours:
                self._writer.send(bytes([number]))
        # Matching a regular expression can take for ever. It looks for signals, and lets no other thread run.
        if self._ask is None:
            time.sleep(_ASIDE_SECONDS)

    def _watch(self) -> None:
        """Waits for a signal, which ends the process, or for the end of the guard."""
        with contextlib.suppress(OSError), self._reader, self._writer:
            while (received := self._received()) != _DISMISSED:
                if received not in _SIGNALS:
                    continue
                ask, self._ask = self._ask, None
                if ask is not None:
                    self._asked_at = time.monotonic()
                    ask(received)
                elif time.monotonic() - self._asked_at > _SAME_EVENT_SECONDS:
                    self._end_process(received)

    def _received(self) -> int:
        """Returns the next byte of the socket; as at the end of the guard where the model has closed the descriptor."""
        try:
            return self._reader.recv(1)[0]
        except (OSError, IndexError):  # IndexError: nothing can arrive any more
            return _DISMISSED

    def _end_process(self, number: int) -> NoReturn:
        of_blas = number == signal.SIGINT and _is_of_blas()
        status = _FAILED if of_blas else 128 + number
        try:
            if self._ends_with is not None:
                self._ends_with(status)
            with contextlib.suppress(RuntimeError):  # the system gives no more threads
                threading.Timer(GRACE_SECONDS, os._exit, (status,)).start()
            _print_message(_NO_THREADS if of_blas else _INTERRUPTED)
            with ExitStack() as cleanups:  # one that fails does not keep the others from running
                for cleanup in self._cleanups:
                    cleanups.callback(cleanup)
        finally:
            os._exit(status)


#: Those that are entered in this process: one, as a rule.
_ENTERED: Final[list[Interrupts]] = []


def _forget_in_child() -> None:
    """Takes the signals of a process that was just forked from the command's."""
    while _ENTERED:
        _ENTERED.pop().forget()


def _leave_to_command(_number: int, _frame: FrameType | None) -> None:
    """Does nothing; unlike a signal that is ignored, this is not inherited by a program that is started."""


os.register_at_fork(after_in_child=_forget_in_child)


def _is_of_blas() -> bool:
    """Returns whether NumPy's matrix library sent the signal, as it does where it gets no threads when it is loaded."""
    spec = getattr(sys.modules.get("numpy"), "__spec__", None)
    if not getattr(spec, "_initializing", False):
        return False
    try:
        _thread.start_new_thread(int, ())
    except RuntimeError:
        return True
    return False


def _print_message(message: bytes) -> None:
    """Writes to standard error why the process ends, without Python's buffers."""
    # The main thread may hold the locks of the buffers.
    if sys.__stderr__ is None:  # it was closed before we started, and another file may have its descriptor now
        return
    stderr = sys.__stderr__.fileno()
    with contextlib.suppress(OSError):
        os.write(stderr, restoring(stderr) + message)
