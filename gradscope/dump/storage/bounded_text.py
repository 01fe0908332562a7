"""Reads text files that users write, of which none is long."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from gradscope.dump.storage.storage_errors import machine_error

#: Seconds until a process has to write to a FIFO, and between two looks.
_WAITING_SECONDS: Final = 5.0
_POLLING_SECONDS: Final = 0.02
#: Errors that do not concern the path.
_OF_MACHINE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
#: Of a FIFO, what is read at first at most.
_FIRST_BYTES: Final = 1 << 10


def bounded_text(path: Path, limit_bytes: int) -> str:
    """Returns the text of a file, which may be a pipe.

    Args:
        path: The file.
        limit_bytes: The bytes that are read at most: a device may have no end.

    Raises:
        OSError: It is not there, has more bytes (`EFBIG`), or has none that can be read now (`ENXIO`): it is a FIFO to
            which no process writes, or as the log of the kernel.
        UnicodeDecodeError: It is not UTF-8.
        MachineError: It cannot be read for a reason that is not in the path, as a missing permission.
    """
    if "\0" in str(path):  # Python has no OSError for it
        raise OSError(errno.EINVAL, "its path has a NUL character", str(path))
    try:
        with open(path, "rb", buffering=0, opener=_opened_at_once) as file:
            content = _first_bytes(file.fileno(), path)
            while len(content) <= limit_bytes and (more := file.read(limit_bytes + 1 - len(content))) != b"":
                if more is None:  # neither a FIFO nor a regular file waits
                    raise OSError(errno.ENXIO, "it has nothing to read now", str(path))
                content += more
    except OSError as error:
        if error.errno in _OF_MACHINE:
            raise machine_error("read", path, error) from error
        raise
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content.decode()


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would be waited for until a process writes to it


def _first_bytes(descriptor: int, path: Path) -> bytes:
    """Returns what there is to read of a FIFO once a process writes to it, if anything; of another file, none."""
    end, found = time.monotonic() + _WAITING_SECONDS, b""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return found
    with suppress(BlockingIOError):  # a process writes to it, and has not begun
        while not ((found := os.read(descriptor, _FIRST_BYTES)) or _has_ended(descriptor)):
            if time.monotonic() > end:
                raise OSError(errno.ENXIO, "it is a FIFO to which no process writes", str(path))
            time.sleep(_POLLING_SECONDS)
    os.set_blocking(descriptor, True)
    return found


def _has_ended(descriptor: int) -> bool:
    """Returns whether a process wrote to a FIFO since it was opened."""
    watched = select.poll()
    watched.register(descriptor, select.POLLIN)
    return any(event & select.POLLHUP for _, event in watched.poll(0))
