"""A process ends without taking itself apart, and one that runs a model without threads that never end.

A process that runs no model ends without giving its memory back, which the system takes at once.

Python frees object by object what a function had when it returns, and what is left when it ends. For a dump of 18,000
tensors that was a twelfth of `show` (2026-11).

A process that runs a model lets its threads end first, and calls what was registered with `atexit`. What would follow
is freeing JAX's modules and the model's objects, of which a file that is still open has something to lose, and a
`__del__` that writes, which Python does not promise to call. It took 0.3 s of `dump resnet50` (2026-11), of 5.

Python waits for every thread and for every process of `multiprocessing` that is no daemon before it ends. One that a
model started, and never ends, would keep the command for ever behind its result. It has some seconds, as a program's
last writes take, and is then left. So has what the model registered with `atexit`.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import stat
import sys
import threading
from contextlib import suppress
from io import BufferedWriter, TextIOWrapper
from typing import IO, Any, ClassVar, Final, NoReturn

#: The new objects after which Python searches for cycles of which nothing is used any more. By default it is 700, and
#: searching took a quarter of `show` (2026-11). That of 70,000 tensors makes 400,000; those of a long series add up.
_SEARCHED_AFTER: Final = 1_000_000

#: The number of tools that `sys.monitoring` has places for.
_TOOLS: Final = 6

#: Seconds that threads of a model have to end in, and as many for what comes after them.
_PATIENCE_SECONDS: Final = 10.0

_STDERR: Final = 2

#: What is said of threads that have not, and of what comes after them.
_NO_DAEMONS: Final = "gradscope: the command ends without threads of the model that go on"
_NOT_ENDED: Final = "gradscope: the command ends without waiting for what the model does at its end"

_KEPT: Final[list[object]] = []


class _Leaving:
    """_Leaving has whether this process leaves as it is, and the status with which it is about to leave.

    Attributes:
        done: All that was registered with `atexit` has been called, where that is known.
    """

    at_once: ClassVar = False
    status: ClassVar[int | None] = None
    done: ClassVar = threading.Event()


def leave_at_once() -> None:
    """Makes this process keep what it has to its end, and leave as it is: for commands that end soon.

    Not where something watches the process and tells at its end what it saw: a profiler, a debugger, or coverage.
    """
    if _is_watched():
        return
    _Leaving.at_once = True
    gc.set_threshold(_SEARCHED_AFTER)


def _is_watched() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12, which tells profilers of it and not of the rest
    tools = () if monitoring is None else map(monitoring.get_tool, range(_TOOLS))
    return bool(sys.getprofile() or sys.gettrace() or "coverage" in sys.modules or any(tools))


def keep(value: object) -> None:
    """Keeps a value to the end of a process that leaves as it is; does nothing in any other."""
    if _Leaving.at_once:
        _KEPT.append(value)


def leave_behind_the_last() -> None:
    """Makes this process end with its status once all else that is registered with `atexit` has been called.

    It has to be called before anything else is registered. Python ends as it always does where that has something left
    to do: a file is open for writing, something watches the process, or a library or an accelerator may write what it
    knows when the C library ends the process.
    """
    atexit.register(_end)


def _end() -> None:
    _Leaving.done.set()
    status = _Leaving.status
    has_plugins = any(name.startswith("jax_plugins.") for name in sys.modules)
    if status is None or has_plugins or "LD_PRELOAD" in os.environ or _is_watched() or _is_writing():
        return
    for stream in _streams():
        with suppress(OSError, ValueError, AttributeError):  # it is closed, or no stream
            stream.flush()
    import ctypes

    ctypes.CDLL(None).fflush(None)  # what a library printed
    os._exit(status)


def _streams() -> list[IO[Any]]:
    """Returns all streams that may have something to write: the standard ones, and the model's own on their files."""
    kinds = (TextIOWrapper, BufferedWriter)
    # Not `isinstance`, which asks an object for its class.
    return [sys.stdout, sys.stderr, *(each for each in gc.get_objects() if issubclass(type(each), kinds))]


def _is_writing() -> bool:
    """Returns whether a file other than the standard streams is open for writing, or nobody knows."""
    # Only here: interrupts are not handled when this module is imported.
    import fcntl
    from pathlib import Path

    try:
        descriptors = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    except OSError:
        return True
    for descriptor in descriptors:
        with suppress(OSError):  # what listed them is closed
            may_write = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            # Anything with a name or a peer; the others are the kernel's, such as events.
            if descriptor > _STDERR and may_write and stat.S_IFMT(os.fstat(descriptor).st_mode):
                return True
    return False


def leave_threads(status: int) -> None:
    """Makes this process end with a status in some seconds, whatever threads there are and whatever follows.

    Where all ends in time, the process ends as any other. It has to be about to end, and `leave_behind_the_last` has to
    have been called.
    """
    ended = threading.Event()
    atexit.register(ended.set)  # Python calls this behind the threads, and before all that was registered earlier

    def wait() -> None:
        if not ended.wait(_PATIENCE_SECONDS):
            _leave_waiting(status, f"{_NO_DAEMONS}: {', '.join(_running_threads())}")
        if not _Leaving.done.wait(_PATIENCE_SECONDS):
            _leave_waiting(status, ", ".join([_NOT_ENDED, *_running_processes()]))

    try:
        # Not by `threading`, which waits for ever for a thread that has no memory to begin with.
        _thread.start_new_thread(wait, ())
    except RuntimeError:  # no thread can be started: nobody would notice that the end does not come
        os._exit(status)


def _leave_waiting(status: int, message: str) -> NoReturn:
    with suppress(OSError):  # standard error is closed
        os.write(_STDERR, f"{message}\n".encode())
    os._exit(status)


def _running_processes() -> list[str]:
    """Returns the names of the processes that Python waits for."""
    from gradscope.naming import printable

    multiprocessing: Any = sys.modules.get("multiprocessing")
    return [] if multiprocessing is None else [printable(each.name) for each in multiprocessing.active_children()]


def _running_threads() -> list[str]:
    """Returns the names of the threads that Python waits for."""
    from gradscope.naming import printable  # only here: interrupts are not handled when this module is imported

    main = threading.main_thread()
    return [printable(each.name) for each in threading.enumerate() if not each.daemon and each is not main]


def leave(status: int) -> NoReturn:
    """Ends the process with a status, after the standard streams have been flushed."""
    if _Leaving.at_once:
        os._exit(status)
    _Leaving.status = status
    sys.exit(status)
