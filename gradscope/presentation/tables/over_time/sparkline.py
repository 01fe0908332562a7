"""A sparkline shows a series of numbers in one line of text, a character for one or several neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-~=+*#"
#: Shown for numbers that are not finite; missing ones are blank.
_NOT_FINITE: Final = "!"

#: The ratio of the largest magnitude to the smallest from which on logarithms are shown.
_WIDE: Final = 100.0

#: The least difference that is shown, relative to the largest number: one of float32 that is as large as it was may
#: have been rounded otherwise.
_SHOWN: Final = 1e-6


def sparkline(values: Sequence[float], width: int, *, unicode: bool) -> str:
    """Returns a series as text: its smallest number is the lowest character, its largest the highest.

    Where all are the same, they are in the middle, but zeros at the bottom.

    Args:
        values: The numbers; NaN for one that is missing. Where they are positive and far apart, their logarithms are
            shown.
        width: The most characters; where there are more numbers, a character stands for the mean of several.
        unicode: Whether characters beyond ASCII can be shown.
    """
    characters = _BLOCKS if unicode else _ASCII
    cells = min(len(values), max(width, 1))
    bounds = [len(values) * cell // cells for cell in range(cells + 1)] if cells else []
    numbers = _spread([_mean(values[start:end]) for start, end in pairwise(bounds)])
    finite = [number for number in numbers if math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_character(number, low, high, characters) for number in numbers).rstrip()


def _character(number: float, low: float, high: float, characters: str) -> str:
    if math.isnan(number):
        return " "
    if math.isinf(number):
        return _NOT_FINITE
    # Halves, because the difference of two large numbers overflows.
    is_flat = high / 2 - low / 2 <= _SHOWN / 2 * max(abs(high), abs(low))
    flat = 0.5 if high else 0.0
    height = flat if is_flat else (number / 2 - low / 2) / (high / 2 - low / 2)
    return characters[min(int(height * len(characters)), len(characters) - 1)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(value / len(known) for value in known) if known else math.nan


def _spread(numbers: list[float]) -> list[float]:
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite or min(finite) <= 0 or max(finite) / min(finite) < _WIDE:
        return numbers
    return [math.log(number) if math.isfinite(number) else number for number in numbers]
