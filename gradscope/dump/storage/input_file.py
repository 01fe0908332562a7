"""A file that is read: regular, of a size known in advance, at any place, from any thread.

Never mapped: a mapped file that somebody shortens kills the process.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gradscope.dump.storage.storage_errors import machine_error
from gradscope.errors import DumpError

#: Errors that say something about the path. Others say something about the machine.
_PATH_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO})


class InputFile:
    """An open file.

    Args:
        path: Which.

    Raises:
        DumpError: There is none, or it is not a regular file.
        MachineError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _opened(path)
        facts = os.fstat(self._descriptor)
        self.size_bytes = facts.st_size
        if not stat.S_ISREG(facts.st_mode):
            self.close()
            raise DumpError("it is not a regular file")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """The file's descriptor."""
        return self._descriptor

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the file.

        Raises:
            DumpError: It ends before.
            MachineError: The disk fails.
        """
        # Never allocate by a stranger's word alone.
        if offset + size_bytes > self.size_bytes:
            raise DumpError(f"it ends after {self.size_bytes} bytes, before byte {offset + size_bytes}")
        buffer = bytearray(size_bytes)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with bytes of the file. See `read`."""
        while buffer:
            try:
                count = os.preadv(self._descriptor, [buffer], offset)
            except OSError as error:
                raise machine_error("read", self.path, error) from error
            if count == 0:
                raise DumpError(f"it ends after {offset} bytes, {len(buffer)} too early")
            buffer, offset = buffer[count:], offset + count

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        # Without O_NONBLOCK, opening a FIFO waits for somebody to write into it.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _PATH_ERRORS:
            raise DumpError(f"it cannot be opened: {os.strerror(error.errno or 0)}") from error
        raise machine_error("open", path, error) from error
    except ValueError as error:
        raise DumpError(f"it cannot be opened: {error}") from error
