"""Reads a regular file, whose size is known in advance, at any offset and from any thread."""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gradscope.dump.storage.storage_errors import machine_error
from gradscope.errors import DumpError
from gradscope.naming import printable
from gradscope.naming.selecting.nearest_names import did_you_mean, nearest

#: Errors that concern the path. All others concern the machine.
_PATH_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO})

#: The number of files of a folder among which one is looked for whose name resembles one that does not exist.
_MOST_NEIGHBOURS: Final = 50_000
#: The least share of letters that such names have in common. Any two files share more than any two words.
_SIMILAR: Final = 0.6

#: How a file begins that Git LFS leaves in place of another, and the most bytes that it has.
_POINTER_START: Final = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES: Final = 1024

#: Bytes that `near` reads at once: fifty small tensors, and no more than an operating system reads ahead anyway.
_WINDOW_BYTES: Final = 16 << 10


class InputFile:
    """An `InputFile` is an open file that is only read. It is a context manager.

    Args:
        path: The file.

    Raises:
        DumpError: The path does not exist, is not a regular file, or is what Git LFS leaves in place of one.
        MachineError: The file cannot be opened.
    """

    # The file is read and never mapped: if another process truncated a mapped file, access to it would kill this one.

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _opened(path)
        self._window = (0, b"")  # in one, so that several threads may change it
        facts = os.fstat(self._descriptor)
        self.size_bytes = facts.st_size
        if not stat.S_ISREG(facts.st_mode):
            self.close()
            raise DumpError("it is not a regular file")
        if len(_POINTER_START) <= self.size_bytes <= _POINTER_BYTES and self._is_pointer():
            self.close()
            raise DumpError("it is a pointer of Git LFS, and not the file", hint="fetch the file: git lfs pull")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Returns the file descriptor."""
        return self._descriptor

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Returns `size_bytes` bytes from `offset` on.

        Raises:
            DumpError: The file ends before that.
            MachineError: The disk fails.
        """
        # The size may come from an untrusted header, so nothing is allocated before the file is known to be that long.
        if offset + size_bytes > self.size_bytes:
            raise DumpError(f"it ends after {self.size_bytes} bytes, before byte {offset + size_bytes}")
        buffer = bytearray(size_bytes)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills a buffer with the bytes from `offset` on. See `read`."""
        while buffer:
            try:
                count = os.preadv(self._descriptor, [buffer], offset)
            except OSError as error:
                raise machine_error("read", self.path, error) from error
            if count == len(buffer):
                return
            if count == 0:
                raise DumpError(f"it ends after {offset} bytes, {len(buffer)} too early")
            buffer, offset = buffer[count:], offset + count

    def _is_pointer(self) -> bool:
        return self.read(0, len(_POINTER_START)) == _POINTER_START

    def near(self, offset: int, size_bytes: int) -> bytes:
        """Returns what `read` does, from one read of the disk for small pieces that are close to each other."""
        first, window = self._window
        start = offset - first
        if not 0 <= start <= len(window) - size_bytes:
            window, start = self.read(offset, max(size_bytes, min(_WINDOW_BYTES, self.size_bytes - offset))), 0
            self._window = (offset, window)
        return window[start : start + size_bytes]

    def close(self) -> None:
        """Closes the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for another process to write into it.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _PATH_ERRORS:
            message = f"it cannot be opened: {os.strerror(error.errno or 0)}"
            raise DumpError(message, hint=_hint(path) if error.errno == errno.ENOENT else None) from error
        raise machine_error("open", path, error) from error
    except ValueError as error:
        raise DumpError(f"it cannot be opened: {error}") from error


def _hint(path: Path) -> str | None:
    """Returns which files beside one that does not exist have a similar name; None where none has."""
    names: list[str] = []
    try:
        if path.is_symlink():
            return f"it is a link to {printable(str(path.readlink()))}, which is not there"
        with os.scandir(path.parent) as entries:
            names = [each.name for each in islice(entries, _MOST_NEIGHBOURS)]
    except FileNotFoundError:
        return f"there is no folder {printable(str(path.parent))}"
    except OSError:
        return None
    # What all have in common is no similarity.
    stems = {name.removesuffix(path.suffix): name for name in sorted(names) if name.endswith(path.suffix)}
    near = [stems[stem] for stem in nearest(path.stem, list(stems), similar=_SIMILAR)]
    return did_you_mean(str(path.with_name(name)) for name in near) if near else None
