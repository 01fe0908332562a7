"""A process that runs no model ends at once; one that runs a model ends without threads that never do.

A process that runs no model ends without giving its memory back, which the system takes at once.

Python frees object by object what a function had when it returns, and what is left when it ends. For a dump of 18,000
tensors that was a twelfth of `show` (2026-11).

Python waits for every thread that is no daemon before it ends. One that a model started, and never ends, would keep the
command for ever behind its result. It has some seconds, as a program's last writes take, and is then left.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from typing import ClassVar, Final, NoReturn

#: The new objects after which Python searches for cycles of which nothing is used any more. By default it is 700, and
#: searching took a quarter of `show` (2026-11). That of 70,000 tensors makes 400,000; those of a long series add up.
_SEARCHED_AFTER: Final = 1_000_000

#: The number of tools that `sys.monitoring` has places for.
_TOOLS: Final = 6

#: Seconds that threads of a model have to end in.
_THREAD_SECONDS: Final = 10.0

#: What is said of those that have not.
_NO_DAEMONS: Final = "gradscope: the command ends without threads of the model that go on"

_KEPT: Final[list[object]] = []


class _Leaving:
    """_Leaving has whether this process leaves as it is."""

    at_once: ClassVar = False


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


def leave_threads(status: int) -> None:
    """Makes this process end with a status in some seconds, whatever threads there are.

    Where threads end in time, the process ends as any other. It has to be about to end.
    """
    ended = threading.Event()
    atexit.register(ended.set)  # Python calls this behind the threads, and before all that was registered earlier

    def wait() -> None:
        if not ended.wait(_THREAD_SECONDS):
            with suppress(OSError):  # standard error is closed
                os.write(2, f"{_NO_DAEMONS}: {', '.join(_running_threads())}\n".encode())
            os._exit(status)

    threading.Thread(target=wait, name="gradscope-leaving", daemon=True).start()


def _running_threads() -> list[str]:
    """Returns the names of the threads that Python waits for."""
    from gradscope.naming import printable  # only here: interrupts are not handled when this module is imported

    main = threading.main_thread()
    return [printable(each.name) for each in threading.enumerate() if not each.daemon and each is not main]


def leave(status: int) -> NoReturn:
    """Ends the process with a status, after the standard streams have been flushed."""
    if _Leaving.at_once:
        os._exit(status)
    sys.exit(status)
