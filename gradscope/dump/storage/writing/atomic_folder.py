"""Writes a new folder of small files in one step: the path holds nothing, or the folder with all of its files."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.storage.writing.atomic_file import write_atomically
from gradscope.dump.storage.writing.partial_file import fresh_path, lock, sweep, sync_folder
from gradscope.dump.storage.writing.unpublished import begun, ended
from gradscope.errors import MachineError, UsageError
from gradscope.naming import printable


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Writes a folder crash-safely; on return, it is synced to disk.

    It is filled next to its path, under a name that the next writer to the path removes where this one dies.

    Args:
        target: The folder, which does not exist; that around it does.
        files: The bytes of its files, by name.

    Raises:
        UsageError: Another process has made the folder meanwhile.
        MachineError: The disk is full or fails; there is no folder then.
    """
    with folder_aside(target) as aside, machine_errors("write to", target):
        for name, data in files.items():
            write_atomically(aside / name, data, replace=False)
        _name(aside, target)
        try:
            sync_folder(target.parent)
        except OSError:
            target.rename(aside)
            raise


@contextmanager
def folder_aside(target: Path) -> Generator[Path]:
    """Yields a new folder next to a path, which is removed at the end; where this process dies, `sweep` removes it.

    Args:
        target: The path of what is made in the folder, in a folder that exists.

    Raises:
        MachineError: The folder cannot be made, or one that the block raises, which names the path in place of it.
    """
    sweep(target)
    aside = fresh_path(target)
    begun(aside)
    with machine_errors("write to", target):
        aside.mkdir()
        descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with machine_errors("write to", target):
            lock(descriptor)
        yield aside
    except MachineError as error:
        message = error.message.replace(printable(str(aside)), printable(str(target)))
        raise MachineError(message, hint=error.hint) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        ended(aside)
        os.close(descriptor)


@contextmanager
def made_folder(path: Path) -> Generator[list[Path]]:
    """Makes a folder, and those around it, and removes them again where the block fails and left nothing in them.

    Args:
        path: The folder, which may exist.

    Yields:
        The folders that were made, the outermost first.

    Raises:
        FileExistsError: It is no folder.
        OSError: It cannot be made.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    made: list[Path] = []
    try:
        made.extend(each for each in reversed(missing) if _is_made(each))
        path.mkdir(exist_ok=True)
        yield made
    except BaseException:
        with suppress(OSError):  # it has something in it, or is not there
            for each in reversed(made):
                each.rmdir()
        raise


def _is_made(folder: Path) -> bool:
    """Makes a folder, and returns whether it is new: one that another process has made meanwhile is that one's."""
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def _name(aside: Path, target: Path) -> None:
    try:
        aside.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise UsageError(f"{printable(str(target))} exists: another process has made it meanwhile") from error
