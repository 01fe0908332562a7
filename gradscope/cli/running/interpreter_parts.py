"""A model that takes away what Python needs, to import and to report, is told so, and it is put back for the message.

A model may clear `sys.path`, or put None in the place of a hook. What then fails is whatever comes next, in gradscope
or in a library, and the message about it would fail as well.
"""

from __future__ import annotations

import builtins
import signal
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

#: Functions that Python calls by these names.
_FUNCTIONS: Final[tuple[tuple[ModuleType, str], ...]] = (
    (builtins, "__import__"),
    (sys, "excepthook"),
    (threading, "excepthook"),
)
#: Signals that programs give a meaning, and the timers that send some.
_OF_PROGRAMS: Final = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2)
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: Lists that it reads.
_LISTS: Final = ("argv", "path", "meta_path", "path_hooks")
#: Those in which it looks for what is imported.
_SEARCHED: Final = _LISTS[1:]


class InterpreterParts:
    """`InterpreterParts` are those of Python as they are when it is made, before there is a model."""

    def __init__(self) -> None:
        self._modules = dict(sys.modules)
        self._functions = [(module, name, getattr(module, name)) for module, name in _FUNCTIONS]
        self._lists: dict[str, list[Any]] = {name: [*getattr(sys, name)] for name in _LISTS}
        self._handlers = {number: signal.getsignal(number) for number in _OF_PROGRAMS}
        self._recursion_limit = sys.getrecursionlimit()
        self._timers = [each for each in _TIMERS if any(signal.getitimer(each))]

    def put_back(self, failure: BaseException) -> tuple[str, ...]:
        """Puts back what the program has taken away, and returns the names of what can be why it failed.

        A part of a list may well be taken away: that counts where something was not imported.
        """
        return (
            *self._put_back_recursion(failure), *self._put_back_modules(), *self._put_back_functions(),
            *self._put_back_lists(failure), *_put_back_replaced(failure),
        )  # fmt: skip

    def still_signals(self) -> None:
        """Stops the timers that the program has set, and ignores the signals that it handles.

        Where it leaves a timer that goes on, the signal ends Python while that ends.
        """
        for timer in _TIMERS:
            if timer not in self._timers:
                signal.setitimer(timer, 0)
        for number, before in self._handlers.items():
            if signal.getsignal(number) not in (before, signal.SIG_IGN):
                signal.signal(number, signal.SIG_IGN)

    def _put_back_recursion(self, failure: BaseException) -> Iterator[str]:
        limit = sys.getrecursionlimit()
        if limit < self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
            if _leads_back_to(RecursionError, failure):
                yield f"the recursion limit, which is {limit}"

    def _put_back_modules(self) -> Iterator[str]:
        if sys.modules.get("sys") is not sys:
            for name, module in self._modules.items():
                sys.modules.setdefault(name, module)
            yield "sys.modules"

    def _put_back_functions(self) -> Iterator[str]:
        for module, name, function in self._functions:
            if not callable(getattr(module, name, None)):
                setattr(module, name, function)
                yield f"{module.__name__}.{name}"

    def _put_back_lists(self, failure: BaseException) -> Iterator[str]:
        for name, before in self._lists.items():
            now: Any = getattr(sys, name, None)
            if not isinstance(now, list):
                setattr(sys, name, before)
                yield f"sys.{name}"
            elif name in _SEARCHED and any(each not in now for each in before) and _leads_back_to(ImportError, failure):
                now += [each for each in before if each not in now]
                yield f"sys.{name}"


def _put_back_replaced(failure: BaseException) -> list[str]:
    if "gradscope.tracing.loading.importing.replaced_functions" not in sys.modules:  # no model was loaded
        return []
    from gradscope.tracing.loading.importing.replaced_functions import put_back_replaced

    return put_back_replaced(failure)


def _leads_back_to(kind: type[BaseException], failure: BaseException | None) -> bool:
    """Returns whether a failure, or one that led to it, is of a class."""
    seen: set[int] = set()
    while failure is not None and id(failure) not in seen:
        if isinstance(failure, kind):
            return True
        seen.add(id(failure))
        failure = failure.__cause__ or failure.__context__
    return False
