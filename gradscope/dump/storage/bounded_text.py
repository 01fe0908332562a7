"""Reads text files that users write, of which none is long."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def bounded_text(path: Path, limit_bytes: int) -> str:
    """Returns the text of a file, which may be a pipe.

    Args:
        path: The file.
        limit_bytes: The bytes that are read at most: a device may have no end.

    Raises:
        OSError: It cannot be read, or has more bytes (`EFBIG`).
        UnicodeDecodeError: It is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content.decode()
