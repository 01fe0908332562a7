"""`as_tuple` treats a single string as a list of one, for every parameter that takes names or patterns."""

from __future__ import annotations

from collections.abc import Iterable


def as_tuple(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Returns names as a tuple: of a string one of that name, and not of its letters; of None an empty one."""
    return (names,) if isinstance(names, str) else tuple(names or ())
