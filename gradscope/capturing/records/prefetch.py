"""Prefetching runs a function on the next items in a thread while the first results are consumed, in order.

There is one thread, and it receives its items in batches, because of the interpreter lock: threads that pass it to each
other after every short call into NumPy take a third more time than the work itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar, cast

from gradscope.work_for_threads import ThreadPool, submitted

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """An `Ahead` limits how far the thread runs ahead of the consumer, and so the memory of results.

    Attributes:
        batches: The most batches that may be under way or waiting to be consumed.
        batch_items: The most items of a batch.
        batch_bytes: The bytes at which a batch is full.
    """

    batches: int
    batch_items: int
    batch_bytes: int


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yields items, each of which but the first is drawn in a thread while the one before is consumed.

    Args:
        items: Iterated in the thread. Their exception is raised when the items before it have been consumed.
    """
    drawing, end = iter(items), object()
    with ThreadPool(1, thread_name_prefix="gradscope") as pool:
        drawn = submitted(pool, next, drawing, end).result()
        while drawn is not end:
            following = submitted(pool, next, drawing, end)
            yield cast("Item", drawn)
            del drawn  # it is freed while the next is being made
            drawn = following.result()
            del following


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, ahead: Ahead, size_of: Callable[[Item], int]
) -> Iterator[Result]:
    """Yields `function` of each item, in order.

    Args:
        function: Run in a thread; this is useful where NumPy or a file releases the interpreter lock. Its exception is
            raised when the results before it have been consumed.
        items: Iterated in the caller's thread. Their exception, too, is raised when the results before it have been
            consumed: they may be the results of another thread.
        ahead: How far the thread runs ahead of the caller.
        size_of: Returns the bytes of an item.
    """
    with ThreadPool(1, thread_name_prefix="gradscope") as pool:
        under_way: deque[_Batch[Result]] = deque()
        failure = _Failure()
        for batch in _batches(_until(failure, items), ahead, size_of):
            results: list[Result] = []
            under_way.append(_Batch(results, submitted(pool, results.extend, map(function, batch))))
            if len(under_way) >= ahead.batches:
                yield from under_way.popleft().wait()
        while under_way:
            yield from under_way.popleft().wait()
        failure.reraise()


class _Failure(AbstractContextManager[None]):
    """A `_Failure` is a context that ends with an exception, which is raised later."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._error = error if isinstance(error, Exception) else None
        return self._error is not None

    def reraise(self) -> None:
        """Raises the exception, if there was one."""
        if self._error is not None:
            raise self._error


def _until(failure: _Failure, items: Iterable[Item]) -> Iterator[Item]:
    """Yields items until drawing one fails."""
    with failure:
        yield from items


class _Batch(NamedTuple, Generic[Result]):
    """A `_Batch` has a list of results, which includes those before a failure, and the future that fills it."""

    results: list[Result]
    filling: Future[None]

    def wait(self) -> Iterator[Result]:
        self.filling.exception()
        yield from self.results
        self.filling.result()


def _batches(items: Iterable[Item], ahead: Ahead, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size_bytes = 0
    for item in items:
        batch.append(item)
        size_bytes += size_of(item)
        if len(batch) >= ahead.batch_items or size_bytes >= ahead.batch_bytes:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
