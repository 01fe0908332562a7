"""Writes a file in one go, as safely as a dump: the path holds the old file or the complete new one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gradscope.dump.storage.writing.partial_file import PartialFile, sweep


def write_atomically(target: Path, data: bytes, *, replace: bool) -> None:
    """Writes a file crash-safely; on return, it is synced to disk. See `write_parts`.

    Args:
        target: The file, as `checked_target` returns it.
        data: Its bytes.
        replace: Whether an existing file is replaced.

    Raises:
        UsageError: A file exists, and is not to be replaced.
        MachineError: The disk is full or fails; an old file is unchanged.
    """
    write_parts(target, [data], replace=replace)


def write_parts(target: Path, parts: Iterable[bytes], *, replace: bool) -> int:
    """Writes a file crash-safely, part by part; on return, it is synced to disk.

    Args:
        target: The file, as `checked_target` returns it.
        parts: Its bytes, each part of which is made when it is written.
        replace: Whether an existing file is replaced.

    Returns:
        The number of bytes.

    Raises:
        UsageError: A file exists, and is not to be replaced.
        MachineError: The disk is full or fails; an old file is unchanged.
    """
    sweep(target)
    file = PartialFile(target)
    size_bytes = 0
    try:
        file.create()
        for part in parts:
            file.write(memoryview(part), size_bytes)
            size_bytes += len(part)
        file.publish(target, size_bytes, replace=replace)
    finally:
        file.discard()
        file.close()
    return size_bytes
