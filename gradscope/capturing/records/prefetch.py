"""A pipeline: a thread works on the next items while the first are being consumed, results in order.

The thread is one, and gets its items in batches, because of the interpreter lock: threads that hand it to and fro after
every short call into NumPy take a third more time than the work itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far work runs ahead of what is consumed: what bounds the memory that is held.

    Attributes:
        batches: So many may be under way or waiting to be consumed.
        batch_items: A batch has no more items than this,
        batch_bytes: and no further one when those in it have so many bytes together.
    """

    batches: int
    batch_items: int
    batch_bytes: int


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, ahead: Ahead, size_of: Callable[[Item], int]
) -> Iterator[Result]:
    """`function` of each item, in order.

    Args:
        function: Run in a thread; worth it where NumPy or a file lets go of the interpreter lock. What it raises is
            raised when the results before that have been consumed.
        items: Drawn one by one in the caller's thread.
        ahead: How far the thread runs ahead of the caller.
        size_of: Bytes that an item holds.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="gradscope") as pool:
        under_way: deque[_Batch[Result]] = deque()
        for batch in _batches(items, ahead, size_of):
            results: list[Result] = []
            under_way.append(_Batch(results, pool.submit(results.extend, map(function, batch))))
            if len(under_way) >= ahead.batches:
                yield from under_way.popleft().wait()
        while under_way:
            yield from under_way.popleft().wait()


class _Batch(NamedTuple, Generic[Result]):
    """Results, and what fills the list of them: it has those before a failure, too."""

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
