"""Sizes in bytes as people write and read them."""

from __future__ import annotations

import re
from typing import Final

from gradscope.errors import UsageError

_UNITS: Final = " kmgt"
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The number of bytes that a size stands for: `4GiB` is a power of two, `500MB` one of ten.

    Raises:
        UsageError: It is no size, or nothing.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{text!r} is no size", hint="write 4GiB or 500MB")
    unit = (found[2] or "").lower()
    return int(float(found[1]) * (1024 if unit.endswith("i") else 1000) ** _UNITS.index(unit[:1] or " "))


def shown_size(size: int) -> str:
    """A size with a unit that keeps it short: `512 B`, `1.5 MiB`, `31.2 GiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit].upper()}iB"
