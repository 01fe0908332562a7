"""Flushing: what has been written of a file reaches the disk while more is being computed and written.

So the sync at the end, before a dump is said to be there, has little left to do. This is only about time: the last sync
has the last word, and reports what went wrong on the way. For that it matters that a flusher opens the file for itself,
because an error of the disk is told once to each who has it open.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

#: How much is written between two flushes.
_STEP_BYTES: Final = 64 << 20

#: Where an operating system cannot leave out the times of a file, they are synced too.
_sync = getattr(os, "fdatasync", os.fsync)


class Flusher:
    """Flushes a file in a thread of its own, from the first step that is full until it is stopped.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting_bytes = 0
        self._due = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def wrote(self, size_bytes: int) -> None:
        """Take note that so many bytes more have been written."""
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _STEP_BYTES and not self._stopped:
            self._waiting_bytes = 0
            self._due.set()
            if self._thread is None:
                # A daemon: a process that is told to end does not wait for a slow disk.
                self._thread = threading.Thread(target=self._flush, name="gradscope-flusher", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Flush no more; a flush that is under way ends by itself."""
        self._stopped = True
        self._due.set()

    def _flush(self) -> None:
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                while self._is_due():
                    _sync(descriptor)
            finally:
                os.close(descriptor)

    def _is_due(self) -> bool:
        self._due.wait()
        self._due.clear()
        return not self._stopped
