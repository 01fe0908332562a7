"""Syncs a file to disk in a background thread while the main thread computes and writes more of it.

The final sync, which comes before a dump is reported as written, then has little left to do. Flushing only saves time:
the final sync still covers all bytes, and reports the errors of earlier ones.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Bytes written between two flushes.
_STEP_BYTES: Final = 64 << 20

#: `fdatasync` skips a file's timestamps; an operating system that lacks it syncs them too.
_sync = getattr(os, "fdatasync", os.fsync)


class Flusher:
    """Flushes a file in a background thread, once for every `_STEP_BYTES` written, until it is stopped.

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
        """Records that `size_bytes` more have been written; flushes them where a step is full."""
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _STEP_BYTES and not self._stopped:
            self._waiting_bytes = 0
            self._due.set()
            if self._thread is None:
                # A daemon thread, so that a process that is interrupted does not wait for a slow disk.
                self._thread = threading.Thread(target=self._flush, name="gradscope-flusher", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stops flushing; a flush that is already running completes in its thread."""
        self._stopped = True
        self._due.set()

    def _flush(self) -> None:
        with suppress(OSError):
            # A descriptor of its own: the system reports a disk error once per descriptor, and the final sync, on the
            # writer's descriptor, has to receive it.
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
