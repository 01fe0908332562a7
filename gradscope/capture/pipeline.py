"""A pipeline: work on the next items in threads while the first are being consumed, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int
) -> Iterator[Result]:
    """`function` of each item, in order.

    Args:
        function: Run in a thread; worth it where NumPy or a file lets go of the interpreter lock.
        items: Drawn one by one in the caller's thread.
        workers: Number of threads.
        ahead: At most so many items are under way or waiting to be consumed: what bounds the memory they hold.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="gradscope") as pool:
        under_way: deque[Future[Result]] = deque()
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) >= ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
