"""A thread calls functions one after the other, and what is left for it is done before the program ends.

Python's executors refuse work from the moment on at which the main thread has ended. But a training loop may go on in
another thread, or end in a function that is registered with `atexit`, and its steps are to be written.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from gradscope.errors import UsageError
from gradscope.work_for_threads import run_into

_Result = TypeVar("_Result")
_Calls = SimpleQueue[Callable[[], Any] | None]


class WritingThread:
    """A `WritingThread` calls functions in the order in which they were submitted, until it is ended or dropped.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: _Calls = SimpleQueue()
        self._process = os.getpid()
        # A daemon: Python waits for any other thread before it calls what is registered with `atexit`.
        self._thread = threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True)
        self._thread.start()
        self._dropped = weakref.finalize(self, self._calls.put, None)
        self._dropped.atexit = False  # functions of `atexit` may submit more
        _STARTED.add(self)

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process started it: one that was forked has no other thread than the one that forked."""
        return self._process == os.getpid()

    def require_this_process(self) -> None:
        """Refuses a process that was forked from the one that started the thread.

        Raises:
            UsageError: This is one.
        """
        if not self.is_of_this_process:
            raise UsageError(
                "this process was forked from the one that writes the run, which has the thread that writes",
                hint="take steps in the process that opened the run, or open another run in each process",
            )

    def submit(self, function: Callable[..., _Result], *arguments: object) -> Future[_Result]:
        """Returns the result that a function is going to have.

        Raises:
            UsageError: This process was forked from the one that started the thread.
        """
        self.require_this_process()
        future: Future[_Result] = Future()
        self._calls.put(partial(run_into, future, function, *arguments))
        return future

    def end(self) -> None:
        """Ends the thread, after all that was submitted."""
        self._dropped.detach()  # its call would do nothing once Python has begun to end
        self._calls.put(None)
        self._thread.join()
        _STARTED.discard(self)


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # what it keeps may be dropped while the thread waits for the next one


def _finish() -> None:
    """Waits until all threads have done what was submitted."""
    for each in list(_STARTED):
        if each.is_of_this_process:
            each.submit(int).result()  # which is done behind all that comes before it


#: The threads that may have something to do when the program ends.
_STARTED: Final = weakref.WeakSet[WritingThread]()
atexit.register(_finish)
