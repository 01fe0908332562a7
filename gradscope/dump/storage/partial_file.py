"""The temporary file a dump is written into, and how it becomes the dump or vanishes.

A *partial* lies beside its target under a short name of its own, `.gradscope-<target>-<host>-<pid>-<random>.partial`
(target and host as hashes), and is locked as long as its writer lives. The lock, not the process number, says whether
it is dead: one that is left behind is swept by the next writer to the same target on the same host; across hosts locks
are not reliable, so others' are left alone.
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
    """A locked temporary file beside its target.

    Args:
        target: The file it is to become; its folder exists.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._descriptor = -1
        self._choose_path()

    def create(self) -> None:
        """Make the file, empty and locked.

        Raises:
            MachineError: It cannot be created or locked.
        """
        with machine_errors("write to", self._target):
            while not self._create_once():
                self.close()
                self._choose_path()

    def write(self, buffer: memoryview, offset: int) -> None:
        """Write all of a buffer at an offset.

        Raises:
            MachineError: The disk is full or fails.
        """
        with machine_errors("write to", self._target):
            while buffer:
                written = os.pwrite(self._descriptor, buffer, offset)
                buffer, offset = buffer[written:], offset + written
                self._flusher.wrote(written)

    def publish(self, target: Path, size_bytes: int) -> None:
        """Cut the file to a size, and put it in the place of `target`: when this returns, both are on the disk.

        Raises:
            MachineError: That failed; the file at `target` is the old one or the whole new one.
        """
        self._flusher.stop()
        with machine_errors("write to", target):
            os.ftruncate(self._descriptor, size_bytes)
            os.fsync(self._descriptor)
            _replace(self._path, target)
            _sync_folder(target.parent)

    def discard(self) -> None:
        """Remove the file, unless it has been published; at any time, from any thread, more than once."""
        with suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Let go of the file and its lock."""
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
        # Between creation and lock another writer's sweep may have taken the file for a dead writer's.
        return lock(self._descriptor) and os.fstat(self._descriptor).st_nlink == 1


def lock(descriptor: int) -> bool:
    """Lock an open file for as long as it is open; whether that was possible, nobody else holding a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sweep(target: Path) -> None:
    """Remove what dead writers to a target have left behind on this host."""
    prefix = _prefix(target)
    with suppress(OSError):
        for path in target.parent.iterdir():
            if path.name.startswith(prefix) and path.suffix == ".partial":
                _remove_dead(path)


def _remove_dead(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
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
    """Put a file in another's place, without waiting for the disk space of the other to be freed.

    An operating system frees it when nobody has the file open any more, which takes 0.2 s for a GB. So it is kept open,
    and closed in a thread.
    """
    old = -1
    with suppress(OSError):  # there is none, or it is not ours to read
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
        # Some network file systems cannot sync a folder, and say that the request is invalid.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
