"""Turns errors of the operating system into `MachineError`s with hints, and adds locations to `DumpError`s.

The code that finds a problem raises a `DumpError` that states only the problem. Its callers add the location (file,
tensor) with `located` while the error passes them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from gradscope.errors import DumpError, MachineError
from gradscope.naming import printable


class located:  # noqa: N801 - it is used as a function that returns a context manager is
    """Puts a location, a path or a tensor's name, in front of the message of any `DumpError` that the block raises."""

    # A class, because a generator takes five times as long, and a file has a location for each of its tensors.
    __slots__ = ("_location",)

    def __init__(self, location: str) -> None:
        self._location = location

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, DumpError):
            raise DumpError(f"{printable(self._location)}: {error.message}", hint=error.hint) from error


_HINTS: Final = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some of your quota, or write to another disk",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or write less",
    errno.EACCES: "choose a file or folder you have the permission for",
    errno.EPERM: "choose a file or folder you have the permission for",
    errno.EROFS: "write to a disk that is not read-only",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


@contextmanager
def machine_errors(doing: str, path: Path) -> Generator[None]:
    """Turns an `OSError` that the block raises into a `MachineError`.

    Args:
        doing: The failed action, as it follows "cannot" in the message: "write to".
        path: The object of that action.
    """
    try:
        yield
    except OSError as error:
        raise machine_error(doing, path, error) from error


@contextmanager
def permitted(path: Path) -> Generator[None]:
    """Turns the error of a block that may not open or enter something into a `MachineError`; others pass.

    Args:
        path: What the user named, on the way to it.
    """
    try:
        yield
    except PermissionError as error:
        raise machine_error("open", path, error) from error


def machine_error(doing: str, path: Path, error: OSError) -> MachineError:
    """Returns a `MachineError` that states the failed action, the path and the reason. See `machine_errors`."""
    cause = os.strerror(error.errno) if error.errno else str(error)
    return MachineError(f"cannot {doing} {printable(str(path))}: {cause}", hint=_HINTS.get(error.errno or 0))
