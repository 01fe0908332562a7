"""One name or several: every parameter that takes names or patterns takes a single string as a list of one."""

from __future__ import annotations

from collections.abc import Iterable


def several(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple; of a string a tuple of that one name, never of its letters."""
    return (names,) if isinstance(names, str) else tuple(names)
