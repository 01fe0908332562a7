"""Work for a thread is done at once where Python starts no more of them, because the program is about to end.

Python's executors refuse work from the moment on at which the main thread has ended. But a program may still dump a
model, or train it, in another thread, or in a function that is registered with `atexit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")

#: How executors say that Python is about to end, or that they have been shut down.
_ENDING: Final = "cannot schedule new futures"


class _EndedPool(Executor):
    """An `_EndedPool` is a pool that takes no work, in place of one that Python no more imports when it ends."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        """Starts no threads."""

    def submit(self, *_arguments: Any, **_keywords: Any) -> Future[Any]:
        """Refuses work as a pool of Python's does."""
        raise RuntimeError(f"{_ENDING} after interpreter shutdown")


if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    ThreadPool = ThreadPoolExecutor
else:
    try:
        from concurrent.futures import ThreadPoolExecutor as ThreadPool
    except RuntimeError:  # its module registers what Python is to do at its end, which has begun
        ThreadPool = _EndedPool


def submitted(pool: Executor, function: Callable[..., _Result], *arguments: object) -> Future[_Result]:
    """Returns what a function is going to return in a thread of a pool; what it returned where that takes no more work.

    Raises:
        RuntimeError: The system gives the process no more threads.
    """
    try:
        return pool.submit(function, *arguments)
    except RuntimeError as error:
        if not str(error).startswith(_ENDING):
            raise
    done: Future[_Result] = Future()
    run_into(done, function, *arguments)
    return done


def mapped(pool: Executor, function: Callable[[_Value], _Result], values: Iterable[_Value]) -> list[_Result]:
    """Returns `function` of each value, in order, computed in the threads of a pool as `submitted` does.

    Raises:
        RuntimeError: The system gives the process no more threads.
    """
    return [each.result() for each in [submitted(pool, function, value) for value in values]]


def run_into(future: Future[_Result], function: Callable[..., _Result], *arguments: object) -> None:
    """Gives a future the result of a function, or its exception."""
    with _ExceptionOf(future):
        future.set_result(function(*arguments))


class _ExceptionOf(AbstractContextManager[None]):
    """An `_ExceptionOf` is a context whose exception is that of a future."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return error is not None
