"""Sizes in bytes have units: `parse_size` reads them, `shown_size` writes them."""

from __future__ import annotations

import re
from typing import Final

from gradscope.errors import UsageError

_UNITS: Final = " kmgt"
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Returns a size in bytes: `4GiB` is `4 * 1024**3`, `500MB` is `500 * 1000**2`.

    Raises:
        UsageError: The text is not a size, or the size is 0.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{text!r} is not a size", hint="write 4GiB or 500MB")
    unit = (found[2] or "").lower()
    return int(float(found[1]) * (1024 if unit.endswith("i") else 1000) ** _UNITS.index(unit[:1] or " "))


def shown_size(size: int) -> str:
    """Returns a size with its largest fitting unit: `512 B`, `1.5 MiB`, `31.2 GiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit].upper()}iB"
