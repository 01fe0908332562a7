"""Defines how much of what a clip returns is at its limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A `Clip` is a clip by two numbers of a value that parameters change, and passes no gradient at its limits.

    Attributes:
        low: The lower limit.
        high: The upper limit.
        share: The share of the elements of its result that are at a limit; of a loop, over all iterations.
        index: Execution index of its result.
        source: `file:line` in the user's code; None where unknown.
    """

    low: float
    high: float
    share: float
    index: int
    source: str | None = None

    @property
    def sentence(self) -> str:
        """What it does to how many elements."""
        what = "a clip" if self.source is None else f"the clip at {self.source}"
        return f"{self.share:.1%} of what {what} returns is {self.low:.6g} or {self.high:.6g}, where no gradient passes"
