"""Interrupts end the process at once on Ctrl-C and SIGTERM, whatever code is running.

Python's signal handlers run between two of its own instructions. While XLA compiles or computes, that is minutes later,
and an orderly exit would wait for XLA's threads or crash in them. So the signal is received where the operating system
delivers it: Python's C handler writes its number into a socket (`signal.set_wakeup_fd`), a thread reads it, runs the
cleanups, and leaves by `os._exit`. Signals that arrive in Python code take the same path, so that no
`KeyboardInterrupt` is raised that JAX could turn into another error.

Sharp edges: a cleanup runs in that thread while the main thread goes on, and must be safe there. After the grace period
the process ends whether the cleanups are done or not. Buffered output is lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
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

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

#: The byte that is read from the socket when the guard ends without a signal; no signal has this number.
_DISMISSED: Final = 0

#: Clears the line that a progress bar was writing and shows the cursor that it hid.
_RESTORE_TERMINAL: Final = b"\r\x1b[2K\x1b[?25h"


class Interrupts:
    """`Interrupts` is a context manager in which SIGINT and SIGTERM run cleanups and end the process with 130 or 143.

    It is entered in the main thread. A signal that is ignored when the process starts (`nohup`, a background job of a
    shell without job control) stays ignored.

    Args:
        ends_with: Is called with the exit status right before the process ends; None for nothing.
    """

    def __init__(self, ends_with: Callable[[int], object] | None = None) -> None:
        self._ends_with = ends_with
        self._cleanups: list[Callable[[], object]] = []
        self._ask: Callable[[int], object] | None = None
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
        self._watcher.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore.close()
        with contextlib.suppress(OSError):  # the model closed every descriptor
            self._writer.send(bytes([_DISMISSED]))
        self._watcher.join(GRACE_SECONDS)  # it closes the socket: a process about to end looks at what is open

    def _leave_to_watcher(self, _number: int, _frame: FrameType | None) -> None:
        """Lets the watcher run: the C handler writes to the socket only where a handler in Python is installed."""
        # Matching a regular expression can take for ever. It looks for signals, and lets no other thread run.
        if self._ask is None:
            time.sleep(_ASIDE_SECONDS)

    def _watch(self) -> None:
        """Waits for a signal, which ends the process, or for the end of the guard."""
        with contextlib.suppress(OSError), self._reader, self._writer:
            while (received := self._received()) != _DISMISSED:
                ask, self._ask = self._ask, None
                if received in _SIGNALS and ask is not None:
                    ask(received)
                elif received in _SIGNALS:
                    self._end_process(received)

    def _received(self) -> int:
        """Returns the next byte of the socket; as at the end of the guard where the model has closed the descriptor."""
        try:
            return self._reader.recv(1)[0]
        except (OSError, IndexError):  # IndexError: nothing can arrive any more
            return _DISMISSED

    def _end_process(self, number: int) -> NoReturn:
        status = 128 + number
        try:
            if self._ends_with is not None:
                self._ends_with(status)
            threading.Timer(GRACE_SECONDS, os._exit, (status,)).start()
            _print_message()
            with ExitStack() as cleanups:  # one that fails does not keep the others from running
                for cleanup in self._cleanups:
                    cleanups.callback(cleanup)
        finally:
            os._exit(status)


def _print_message() -> None:
    """Writes to standard error that the process was interrupted, without Python's buffers."""
    # The main thread may hold the locks of the buffers.
    if sys.__stderr__ is None:  # it was closed before we started, and another file may have its descriptor now
        return
    stderr = sys.__stderr__.fileno()
    restored = _RESTORE_TERMINAL if os.isatty(stderr) else b""
    with contextlib.suppress(OSError):
        os.write(stderr, restored + b"gradscope: interrupted\n")
