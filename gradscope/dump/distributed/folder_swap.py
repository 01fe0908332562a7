"""Puts a new folder in the place of an old one in one step, so that the path holds one of the two at any time.

Linux and macOS exchange the names of two folders atomically. Where the file system cannot, there are three renames, and
only a crash between them leaves nothing at the path, with both folders next to it.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gradscope.dump.storage.storage_errors import machine_errors

#: The descriptor that means the current folder, and the flag of an exchange: of Linux, and of macOS.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_RENAME_SWAP: Final = 2


def swap_folders(new: Path, old: Path) -> None:
    """Exchanges the names of two folders next to each other; on return, the folder that they are in is synced.

    Raises:
        MachineError: They cannot be renamed; both have their own names then.
    """
    with machine_errors("replace", old):
        if not _exchanged(new, old):
            _exchange_by_renames(new, old)
        with suppress(OSError):  # some network file systems cannot sync a folder
            descriptor = os.open(old.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _exchanged(one: Path, other: Path) -> bool:
    libc: Any = ctypes.CDLL(None)
    paths = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        return libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0
    return hasattr(libc, "renamex_np") and libc.renamex_np(*paths, _RENAME_SWAP) == 0


def _exchange_by_renames(new: Path, old: Path) -> None:
    aside = old.with_name(f"{old.name}.replaced")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)
