"""Reading a dump from the first byte to the last, every CRC compared."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gradscope.dump.reader import open_dump
from gradscope.naming import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a sound dump was found to hold.

    Attributes:
        path: The dump.
        entries: Number of entries.
        tensors: Number of tensors, all of them read.
        size_bytes: Bytes of the tensors.
        complete: Whether the run that wrote it ended well.
        note: The manifest's note.
    """

    path: Path
    entries: int
    tensors: int
    size_bytes: int
    complete: bool
    note: str


def verify(path: str | os.PathLike[str]) -> Verification:
    """Read everything in a dump; memory is bounded by a chunk.

    Args:
        path: As for `open_dump`.

    Raises:
        DumpError: Something in it is damaged; the first such thing is named.
        MachineError: It cannot be read.
    """
    with open_dump(path) as dump:
        manifest = dump.manifest
        places = [entry.stored for entry in manifest.entries if entry.stored is not None]
        for entry in manifest.entries:
            if entry.stored is not None:
                dump.check(key_of(entry.family, entry.name))
    return Verification(
        path=Path(path),
        entries=len(manifest.entries),
        tensors=len(places),
        size_bytes=sum(place.size_bytes for place in places),
        complete=manifest.complete,
        note=manifest.note,
    )
