"""Writes files that belong together into a folder that exists, so that the last is never beside others than its own."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.storage.writing.partial_file import PartialFile, fresh_path, lock, say_unlocked, sweep, sync_folder
from gradscope.errors import GradscopeError, UsageError
from gradscope.naming import printable

#: How long another process that writes to the folder is waited for: what it does meanwhile takes milliseconds.
WAITING_SECONDS: Final = 10.0
_POLLING_SECONDS: Final = 0.01


@contextmanager
def alone_in(folder: Path, *, waiting: float) -> Generator[None]:
    """Keeps others that write files together out of a folder, once they are done: of two, one's files are all there.

    Args:
        folder: The folder, which exists.
        waiting: How many seconds others have to be done.

    Raises:
        UsageError: Another process is not done in time.
        MachineError: The folder cannot be opened or locked.
    """
    with machine_errors("write to", folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + waiting
        with machine_errors("lock", folder):
            while (locked := lock(descriptor)) is False:
                if time.monotonic() > end:
                    raise UsageError(
                        f"another process writes to {printable(str(folder))}",
                        hint="wait for it, or name another folder",
                    )
                time.sleep(_POLLING_SECONDS)
        if locked is None:
            say_unlocked(folder)
        yield
    finally:
        os.close(descriptor)


def write_together(files: Mapping[Path, bytes], *, replace: bool) -> None:
    """Writes files crash-safely; on return, they are synced to disk.

    A process that dies leaves the old files, the new ones, or none by the name of the last: that of the old one goes
    before any other file is replaced.

    Args:
        files: The bytes of each file, as `checked_file` returns its path, all in one folder. The last is the one that
            reads the others.
        replace: Whether existing files are replaced.

    Raises:
        UsageError: A file exists, and is not to be replaced, or another process goes on writing to the folder.
        MachineError: The disk is full or fails. The files are the old ones; or those that were replaced stay
            so, and the last is gone.
    """
    *others, last = files
    with alone_in(last.parent, waiting=WAITING_SECONDS), ExitStack() as opened:
        before = {target: _identity(target) for target in files}
        parts = {target: _filled(target, data, opened) for target, data in files.items()}
        aside = fresh_path(last)
        try:
            if replace and before[last] is not None:
                with machine_errors("replace", last):
                    last.rename(aside)
                    sync_folder(last.parent)
            for target, part in parts.items():
                part.publish(target, len(files[target]), replace=replace)
        except GradscopeError:
            _withdraw({target: files[target] for target in files if before[target] is None})
            if aside.exists() and all(_identity(target) == before[target] for target in others):
                with suppress(OSError):
                    aside.rename(last)
            raise
        finally:
            aside.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Returns what tells a file from another one of its name; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _filled(target: Path, data: bytes, opened: ExitStack) -> PartialFile:
    """Returns the file that will be the target, with its bytes; at the end it is closed, and published or removed."""
    sweep(target)
    part = PartialFile(target)
    opened.callback(part.close)
    opened.callback(part.discard)
    part.create()
    part.write(memoryview(data), 0)
    return part


def _withdraw(written: Mapping[Path, bytes]) -> None:
    """Removes files as far as they have what was written; the disk may fail at this, too."""
    for path, data in written.items():
        with suppress(OSError):
            if path.read_bytes() == data:
                path.unlink()
