"""Timings record the seconds of each phase of a command."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Timings:
    """A `Timings` adds up seconds by phase.

    Args:
        started: Called with a phase's name when it begins, for a progress display.
    """

    def __init__(self, started: Callable[[str], None] = lambda _: None) -> None:
        self.seconds: dict[str, float] = {}
        self._started = started

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Times the body of a `with` statement; a phase that is entered again adds up."""
        self._started(name)
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
