"""The crash-safe write: a dump is written into a locked temporary file, which is renamed onto its target or removed.

`PartialFile.publish` syncs the file with `fsync`, renames it onto the target and syncs the folder. So the target is
the old file or the complete new one at any time, even if the process is killed.

A *partial* is stored next to its target as `.gradscope-<target>-<host>-<pid>-<random>.partial` (target and host are
hashes). Its writer keeps it locked. `sweep` removes unlocked partials that dead writers to the same target left behind
on this host. Partials of other hosts are kept, because locks are not reliable across hosts.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import socket
import threading
from contextlib import suppress
from pathlib import Path

from gradscope.dump.storage.flushing import Flusher
from gradscope.dump.storage.storage_errors import machine_errors


class PartialFile:
    """A locked temporary file next to its target.

    Args:
        target: The file that it replaces when published; its folder exists.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._descriptor = -1
        self._choose_path()

    def create(self) -> None:
        """Creates the file, empty and locked.

        Raises:
            MachineError: The file cannot be created or locked.
        """
        with machine_errors("write to", self._target):
            while not self._create_once():
                self.close()
                self._choose_path()

    def write(self, buffer: memoryview, offset: int) -> None:
        """Writes all of a buffer at an offset.

        Raises:
            MachineError: The disk is full or fails.
        """
        with machine_errors("write to", self._target):
            while buffer:
                written = os.pwrite(self._descriptor, buffer, offset)
                buffer, offset = buffer[written:], offset + written
                self._flusher.wrote(written)

    def publish(self, target: Path, size_bytes: int) -> None:
        """Truncates the file to a size and renames it onto `target`; on return, file and folder are synced to disk.

        Raises:
            MachineError: A step failed; the file at `target` is the old one or the complete new one.
        """
        self._flusher.stop()
        with machine_errors("write to", target):
            os.ftruncate(self._descriptor, size_bytes)
            # Before the rename: after a power failure the new name must not point to bytes that were never written.
            os.fsync(self._descriptor)
            _replace(self._path, target)
            _sync_folder(target.parent)

    def discard(self) -> None:
        """Removes the file, unless it has been published. It may be called at any time, from any thread, repeatedly."""
        with suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Closes the file, which releases its lock."""
        self._flusher.stop()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _choose_path(self) -> None:
        self._path = _fresh_path(self._target)
        self._flusher = Flusher(self._path)

    def _create_once(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o666)
        # Between creation and lock, another writer's sweep may have removed the file as one of a dead writer.
        return lock(self._descriptor) and os.fstat(self._descriptor).st_nlink == 1


def lock(descriptor: int) -> bool:
    """Locks an open file until it is closed; returns False where another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sweep(target: Path) -> None:
    """Removes the partials that dead writers to a target have left behind on this host."""
    prefix = _prefix(target)
    with suppress(OSError):
        for path in target.parent.iterdir():
            if path.name.startswith(prefix) and path.suffix == ".partial":
                _remove_dead(path)


def _remove_dead(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # The lock decides whether the writer is alive, not the process number: numbers are reused.
            if lock(descriptor):
                path.unlink()
        finally:
            os.close(descriptor)


def _fresh_path(target: Path) -> Path:
    return target.with_name(f"{_prefix(target)}{os.getpid()}-{secrets.token_hex(4)}.partial")


def _prefix(target: Path) -> str:
    return f".gradscope-{_hashed(target.name, 12)}-{_hashed(socket.gethostname(), 8)}-"


def _hashed(text: str, digits: int) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:digits]


def _replace(path: Path, target: Path) -> None:
    """Renames a file onto another, without waiting until the disk space of the replaced file is freed."""
    # The system frees the space when the last descriptor is closed, which takes 0.2 s for a GB. So the old file is kept
    # open during the rename, and closed in a thread.
    old = -1
    with suppress(OSError):  # there is no old file, or it is not readable
        old = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        path.replace(target)
    finally:
        if old >= 0:
            threading.Thread(target=os.close, args=(old,), name="gradscope-closer", daemon=True).start()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder, and report the request as invalid.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
