"""A pipeline: work on the next items in threads while the first are being consumed, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far work runs ahead of what is consumed: what bounds the memory that is held.

    Attributes:
        items: So many items may be under way or waiting to be consumed, whatever their size.
        small_items: So many where they are small,
        size_bytes: that is, of no more than this together.
    """

    items: int
    small_items: int
    size_bytes: int


def in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    ahead: Ahead,
    size_of: Callable[[Item], int],
) -> Iterator[Result]:
    """`function` of each item, in order.

    Args:
        function: Run in a thread; worth it where NumPy or a file lets go of the interpreter lock.
        items: Drawn one by one in the caller's thread.
        workers: Number of threads.
        ahead: How far they run ahead of the caller.
        size_of: Bytes that an item holds.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="gradscope") as pool:
        under_way: deque[tuple[Future[Result], int]] = deque()
        size_bytes = 0
        for item in items:
            under_way.append((pool.submit(function, item), size := size_of(item)))
            size_bytes += size
            while len(under_way) >= (ahead.small_items if size_bytes <= ahead.size_bytes else ahead.items):
                first, size = under_way.popleft()
                size_bytes -= size
                yield first.result()
        while under_way:
            yield under_way.popleft()[0].result()
