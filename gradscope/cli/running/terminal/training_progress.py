"""The progress of a training run is shown by one line on a terminal, and by lines that `--log-every` requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gradscope.cli.running.terminal.progress import Progress

#: Seconds between two changes of the line on a terminal.
_REFRESH_SECONDS: Final = 0.1


class TrainingProgress:
    """A `TrainingProgress` shows each step of a run.

    Args:
        progress: Shows a line on a terminal.
        say: Prints a line.
        steps: How many steps the run has.
        log_every: A line is printed every so many steps; None for never.
    """

    def __init__(self, progress: Progress, say: Callable[[str], None], *, steps: int, log_every: int | None) -> None:
        self._progress = progress
        self._say = say
        self._steps = steps
        self._log_every = log_every
        self._first: tuple[int, float] | None = None
        self._shown_at = 0.0

    def __call__(self, number: int, numbers: Mapping[str, Any]) -> None:
        """Shows a step that is done.

        Args:
            number: Its number.
            numbers: Its numbers, arrays that are ready.
        """
        now = time.monotonic()
        if self._first is None:
            self._first = (number, now)  # its time is mostly that of compiling
        if self._log_every is not None and number % self._log_every == 0:
            self._say(f"step {number:,}  {_listed(numbers)}{self._rate(number, now)}")
        if now - self._shown_at >= _REFRESH_SECONDS:
            self._shown_at = now
            loss = _listed({"loss": numbers["loss"]})
            self._progress.show(
                f"step {number + 1:,} of {self._steps:,}  {loss}{self._rate(number, now)}{self._left(number, now)}"
            )

    def _rate(self, number: int, now: float) -> str:
        rate = self._steps_per_second(number, now)
        return "" if rate is None else f"  {rate:.3g} steps/s"

    def _left(self, number: int, now: float) -> str:
        rate = self._steps_per_second(number, now)
        if rate is None:
            return ""
        minutes, seconds = divmod(math.ceil((self._steps - number - 1) / rate), 60)
        return f"  {minutes}:{seconds:02} left"

    def _steps_per_second(self, number: int, now: float) -> float | None:
        if self._first is None or number == self._first[0] or now == self._first[1]:
            return None
        return (number - self._first[0]) / (now - self._first[1])


def _listed(numbers: Mapping[str, Any]) -> str:
    """Returns the numbers with their names, the loss first."""
    named = sorted(numbers.items(), key=lambda each: each[0] != "loss")
    return "  ".join(f"{name} {float(value):.4g}" for name, value in named)
