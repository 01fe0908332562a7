"""Direct I/O writes whole pages of a file to the disk, past the system's cache.

A write through the cache copies every byte into fresh pages of memory. In a virtual machine that gets these from its
host, that takes longer than a fast disk does: 800 MB took 2.5 s, and 0.5 s past the cache (2026-11). A dump also no
longer evicts from the cache what other programs have there. A slow disk is written through the cache: it is the disk
that takes the time, and a command that reads the dump next finds it in memory.

A thread for direct I/O, which would let the caller prepare the next pages meanwhile, saves nothing: the processors are
busy already.

Direct I/O only saves time. What it does not write, because of an error, too, is written through the cache, which
reports errors.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Final

import numpy as np

#: Direct I/O needs positions in the file, sizes and addresses that are multiples of a disk's block. A page always is.
_PAGE_BYTES: Final = mmap.PAGESIZE

#: The fewest bytes that are worth waiting for the disk.
_LEAST_BYTES: Final = 1 << 18

#: Bytes after which the speed of the disk is known, and the speed, in bytes a second, below which direct I/O ends. Both
#: are far from what a fast disk does, since a write also waits for the processors, which compute meanwhile: by 32 MiB
#: and 0.5 GB/s, a disk of 1.4 GB/s was slow, and of a dump of 21 GB all but 34 MB went through the cache (2026-11).
_KNOWN_AFTER: Final = 256 << 20
_LEAST_SPEED: Final = 2e8

#: The system's flag for it; 0 where it has none.
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


class DirectWriter:
    """A `DirectWriter` writes pages of a file that another descriptor writes through the cache.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._serves = bool(_DIRECT)
        self._pages: mmap.mmap | None = None
        self._written, self._seconds = 0, 0.0

    def write(self, buffer: memoryview, offset: int) -> tuple[int, int]:
        """Writes the whole pages of the file that a buffer covers, if that is faster than through the cache.

        Args:
            buffer: Bytes of any alignment.
            offset: The position of the first of them in the file.

        Returns:
            The first byte of the buffer that is on the disk now, and the one behind the last; equal where none is.
        """
        start = -offset % _PAGE_BYTES
        size = (len(buffer) - start) // _PAGE_BYTES * _PAGE_BYTES
        if not self._serves or size < _LEAST_BYTES:
            return 0, 0
        begin = time.perf_counter()
        try:
            written = self._write_pages(buffer[start : start + size], offset + start)
        except OSError:  # the file system has no direct I/O, or other rules for it; or what will fail through the cache
            self._serves = False
            return 0, 0
        self._written += written
        self._seconds += time.perf_counter() - begin
        self._serves = self._written < _KNOWN_AFTER or self._written >= self._seconds * _LEAST_SPEED
        return start, start + written

    def close(self) -> None:
        """Closes the descriptor."""
        self._serves = False
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write_pages(self, pages: memoryview, offset: int) -> int:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_WRONLY | _DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
        if self._pages is None or len(self._pages) < len(pages):
            self._pages = mmap.mmap(-1, len(pages))  # its address is that of a page
        aligned = np.frombuffer(self._pages, np.uint8, len(pages))
        np.copyto(aligned, np.frombuffer(pages, np.uint8))  # other threads compute meanwhile, unlike with a slice
        return os.pwrite(self._descriptor, aligned.data, offset)
