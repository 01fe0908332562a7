"""Bars: counts as horizontal bars of text, an eighth of a character fine where the screen has the characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def bars(counts: Sequence[int], width: int, *, unicode: bool) -> list[str]:
    """One bar per count; the longest is `width` characters, and no count but zero is without one.

    Args:
        counts: Not negative.
        width: Characters of the longest bar.
        unicode: Whether blocks can be shown; `#` otherwise.
    """
    largest = max(counts, default=0)
    parts = 8 if unicode else 1
    lengths = [-(-count * width * parts // largest) if largest else 0 for count in counts]
    return [_blocks(length) if unicode else "#" * length for length in lengths]


def _blocks(eighths: int) -> str:
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
