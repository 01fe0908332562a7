"""Saying where in a file something is wrong: what is wrong is said below, the place is added on the way up."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from gradscope.errors import DumpError
from gradscope.naming import printable


@contextmanager
def located(place: str) -> Generator[None]:
    """Put a place, a path or a tensor's name, in front of the message of a `DumpError` that comes out of the block."""
    try:
        yield
    except DumpError as error:
        raise DumpError(f"{printable(place)}: {error.message}", hint=error.hint) from error
