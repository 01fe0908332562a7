"""Verifies a dump: reads every byte of it and compares every CRC-32."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gradscope.dump.reader import open_dump
from gradscope.naming import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A `Verification` has the contents of a dump that was found to be undamaged.

    Attributes:
        path: The dump.
        entries: Number of entries.
        tensors: Number of tensors, all of which were read.
        size_bytes: Bytes of the tensors.
        complete: Whether the run that wrote it succeeded.
        note: The manifest's note.
    """

    path: Path
    entries: int
    tensors: int
    size_bytes: int
    complete: bool
    note: str


def verify(path: str | os.PathLike[str]) -> Verification:
    """Reads everything in a dump and checks it; memory is bounded by a chunk.

    Args:
        path: As for `open_dump`.

    Returns:
        A summary of the dump's contents.

    Raises:
        DumpError: The dump is damaged; the message names the first damaged tensor.
        MachineError: The dump cannot be read.
    """
    with open_dump(path) as dump:
        manifest = dump.manifest
        stored = [entry.stored for entry in manifest.entries if entry.stored is not None]
        for entry in manifest.entries:
            if entry.stored is not None:
                dump.check(key_of(entry.family, entry.name))
    return Verification(
        path=Path(path),
        entries=len(manifest.entries),
        tensors=len(stored),
        size_bytes=sum(each.size_bytes for each in stored),
        complete=manifest.complete,
        note=manifest.note,
    )
