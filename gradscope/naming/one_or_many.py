"""`as_tuple` treats a single string as a list of one, for every parameter that takes names or patterns."""

from __future__ import annotations

from collections.abc import Iterable


def as_tuple(names: str | Iterable[str]) -> tuple[str, ...]:
    """Returns names as a tuple; a string becomes a tuple of that one name, not of its letters."""
    return (names,) if isinstance(names, str) else tuple(names)
