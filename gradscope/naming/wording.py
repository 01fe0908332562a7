"""Numbers, counts and source lines in words, for sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

#: The number of source lines that a text has.
_LINES: Final = 4
#: The number of names that a text has.
_NAMES: Final = 3


def brief(number: float) -> str:
    """Returns a number with two digits: `2.1e-2`, `1.5`, `0`, `inf`."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if 0.1 <= number < 9.95:
        return f"{number:#.2g}"
    significand, exponent = f"{number:.1e}".split("e")
    return f"{significand}e{int(exponent)}"


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Returns a count with its noun: `1 name`, `2 names`."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def place_behind(text: str, source: str | None) -> str:
    """Returns a line in brackets, to be written behind a text: ` (model.py:3)`; "" where the text names that line.

    Args:
        text: The text.
        source: `file:line`; None where it is not known.
    """
    if source is None or re.search(rf"(?<![\w./-]){re.escape(source)}(?!\d)", text):
        return ""
    return f" ({source})"


def joined_lines(lines: Sequence[str]) -> str:
    """Returns source lines as one text, each file once: `model.py:98, 99, block.py:7`."""
    found: list[str] = []
    before = ""
    for file, _, number in (line.rpartition(":") for line in lines):
        found.append(number if file == before else f"{file}:{number}")
        before = file
    more = len(found) - _LINES
    return ", ".join(found) if more <= 1 else f"{', '.join(found[:_LINES])} and {more} more lines"


def some_of(names: Sequence[str]) -> str:
    """Returns names as one text, the first of many: `a, b, c and 2 more`."""
    more = len(names) - _NAMES
    return f"{', '.join(names[:_NAMES])} and {more} more" if more > 0 else ", ".join(names)


def percent(share: float) -> str:
    """Returns a fraction as a percentage with two digits: `0.05 %`, `12 %`, `130 %`."""
    number = 100 * share
    if number >= 10:
        return f"{number:.0f} %"
    return f"{number:.2g} %" if number >= 0.001 else f"{brief(number)} %"


def times(factor: float) -> str:
    """Returns a factor with two digits: `0.81x`, `31x`."""
    return f"{factor:.0f}x" if 10 <= factor < math.inf else f"{brief(factor)}x"
