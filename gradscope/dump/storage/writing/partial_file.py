"""A crash-safe write goes into a locked temporary file, which is renamed onto its target or removed.

`PartialFile.publish` syncs the file with `fsync`, renames it onto the target and syncs the folder. So the target is
the old file or the complete new one at any time, even if the process is killed. Where nothing may be replaced, the file
gets its name by a hard link, which fails if another process has written the target meanwhile.

The new file has the permissions of the one that it replaces, also while it is being written.

A *partial* is stored next to its target as `.gradscope-<target>-<host>-<pid>-<random>.partial` (target and host are
hashes). Its writer keeps it locked. `sweep` removes unlocked partials that dead writers to the same target left behind
on this host. Partials of other hosts are kept, because locks are not reliable across hosts. Some file systems have no
locks: writing goes on without one, a message says so, and nothing is swept there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import socket
import stat
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.storage.writing.direct_io import DirectWriter
from gradscope.dump.storage.writing.flushing import Flusher
from gradscope.dump.storage.writing.read_files import reads_ignored
from gradscope.dump.storage.writing.unpublished import begun, ended, is_unpublished
from gradscope.errors import UsageError
from gradscope.naming import printable

#: Errors of a file system that has no locks, and of one that has no hard links.
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

#: Permissions of a new file, before the user's umask.
_USUAL_MODE: Final = 0o666


class PartialFile:
    """A `PartialFile` is a locked temporary file next to its target.

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
            start, stop = self._direct.write(buffer, offset)
            self._write_through_cache(buffer[:start], offset)
            self._write_through_cache(buffer[stop:], offset + stop)

    def publish(self, target: Path, size_bytes: int, *, replace: bool) -> None:
        """Truncates the file to a size and gives it the name `target`; on return, file and folder are synced to disk.

        Args:
            target: The new path of the file.
            size_bytes: The size.
            replace: Whether a file at `target` is replaced.

        Raises:
            UsageError: Another process has written a file to `target`, which is not to be replaced.
            MachineError: A step failed; the file at `target` is the old one or the complete new one.
        """
        self._flusher.stop()
        with machine_errors("write to", target), reads_ignored():
            os.ftruncate(self._descriptor, size_bytes)
            mode = _mode(target)
            if mode is not None:
                os.fchmod(self._descriptor, mode)
            # Before the rename: after a power failure the new name must not point to bytes that were never written.
            os.fsync(self._descriptor)
            if replace:
                _replace(self._path, target)
            else:
                _name_anew(self._path, target)
            sync_folder(target.parent)

    def discard(self) -> None:
        """Removes the file, unless it has been published. It may be called at any time, from any thread, repeatedly."""
        if is_unpublished(self._path):
            with suppress(OSError):
                self._path.unlink()
            ended(self._path)

    def close(self) -> None:
        """Closes the file, which releases its lock."""
        self._flusher.stop()
        self._direct.close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write_through_cache(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            written = os.pwrite(self._descriptor, buffer, offset)
            buffer, offset = buffer[written:], offset + written
            self._flusher.wrote(written)

    def _choose_path(self) -> None:
        self._path = fresh_path(self._target)
        self._flusher = Flusher(self._path)
        self._direct = DirectWriter(self._path)

    def _create_once(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        old = _mode(self._target)
        begun(self._path)
        self._descriptor = os.open(self._path, flags, _USUAL_MODE if old is None else _USUAL_MODE & old)
        locked = lock(self._descriptor)
        if locked is None:
            say_unlocked(self._target.parent)
        # Between creation and lock, another writer's sweep may have removed the file as one of a dead writer.
        return locked is not False and os.fstat(self._descriptor).st_nlink == 1


def lock(descriptor: int) -> bool | None:
    """Locks an open file until it is closed.

    Returns:
        True where it is locked now, False where another process has locked it, None where its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def unlock(descriptor: int) -> None:
    """Gives up the lock of an open file, which a process that was forked meanwhile may have open, too."""
    with suppress(OSError):  # the program has closed it
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@cache
def say_unlocked(folder: Path) -> None:
    """Logs, once for each folder, that its file system has no locks."""
    logging.getLogger("gradscope").warning(
        "gradscope: the file system of %s has no locks: do not run two writers to one path at the same time",
        printable(str(folder)),
    )


def sweep(target: Path) -> None:
    """Removes the partials that dead writers to a target have left behind on this host."""
    prefix = _prefix(target)
    with suppress(OSError):
        for path in target.parent.iterdir():
            if path.name.startswith(prefix) and path.suffix == ".partial":
                _remove_dead(path)


def _remove_dead(path: Path) -> None:
    with suppress(OSError):
        is_folder = path.is_dir() and not path.is_symlink()
        mode = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR
        descriptor = os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # The lock decides whether the writer is alive, not the process number: numbers are reused.
            if lock(descriptor):
                (shutil.rmtree if is_folder else os.unlink)(path)
        finally:
            os.close(descriptor)


def fresh_path(target: Path) -> Path:
    """Returns a new path next to a target, which `sweep` knows."""
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


def _name_anew(path: Path, target: Path) -> None:
    """Moves a file to a path where nothing is."""
    try:
        os.link(path, target, follow_symlinks=False)
        path.unlink()
    except FileExistsError as error:
        raise _taken(target) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links, an empty file reserves the name. Only a crash between the two steps leaves it there.
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        except FileExistsError as taken:
            raise _taken(target) from taken
        path.replace(target)


def _taken(target: Path) -> UsageError:
    return UsageError(
        f"{printable(str(target))} exists: another process has written it meanwhile",
        hint="give another path, or replace it with --force (in Python, force=True)",
    )


def _mode(path: Path) -> int | None:
    """Returns the permissions of a file; None where there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder, and report the request as invalid.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
