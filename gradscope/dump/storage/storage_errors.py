"""What the operating system says when writing or reading fails, in terms a user can act on.

Saying where in a file something is wrong: what is wrong is said below, the place is added on the way up.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gradscope.errors import DumpError, MachineError
from gradscope.naming import printable


@contextmanager
def located(place: str) -> Generator[None]:
    """Put a place, a path or a tensor's name, in front of the message of a `DumpError` that comes out of the block."""
    try:
        yield
    except DumpError as error:
        raise DumpError(f"{printable(place)}: {error.message}", hint=error.hint) from error


_HINTS: Final = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some of your quota, or write to another disk",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or write less",
    errno.EACCES: "choose a place you have the permission for",
    errno.EPERM: "choose a place you have the permission for",
    errno.EROFS: "write to a disk that is not read-only",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


@contextmanager
def machine_errors(doing: str, path: Path) -> Generator[None]:
    """Turn an error of the operating system into a `MachineError`.

    Args:
        doing: What is done, as it follows "cannot": "write".
        path: To what.
    """
    try:
        yield
    except OSError as error:
        raise machine_error(doing, path, error) from error


def machine_error(doing: str, path: Path, error: OSError) -> MachineError:
    """The `MachineError` that says what failed on which path and why. See `machine_errors`."""
    cause = os.strerror(error.errno) if error.errno else str(error)
    return MachineError(f"cannot {doing} {printable(str(path))}: {cause}", hint=_HINTS.get(error.errno or 0))
