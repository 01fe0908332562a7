"""Writes a small file in one piece, as safely as a dump: the path holds the old file or the complete new one."""

from __future__ import annotations

from pathlib import Path

from gradscope.dump.storage.writing.partial_file import PartialFile, sweep


def write_atomically(target: Path, data: bytes, *, replace: bool) -> None:
    """Writes a file crash-safely; on return, it is synced to disk.

    Args:
        target: The file, as `checked_target` returns it.
        data: Its bytes.
        replace: Whether an existing file is replaced.

    Raises:
        UsageError: A file exists, and is not to be replaced.
        MachineError: The disk is full or fails; an old file is unchanged.
    """
    sweep(target)
    file = PartialFile(target)
    try:
        file.create()
        file.write(memoryview(data), 0)
        file.publish(target, len(data), replace=replace)
    finally:
        file.discard()
        file.close()
