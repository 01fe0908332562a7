"""Writes and reads the index of a multi-process dump: the manifest of the complete dump, and the files it consists of.

Process 0 writes the index last. It records the length of every process's file and the CRC-32 of its manifest, so that
a file of another run is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradscope.dump.manifest.codec import ITEM_READERS, manifest_from_json, manifest_to_json
from gradscope.dump.manifest.entries.manifest_text import read_text
from gradscope.dump.manifest.json_fields import Fields
from gradscope.dump.manifest.json_text import dumps
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.dump.sources.archive import MANIFEST_LIMIT
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.writing.atomic_file import write_atomically
from gradscope.errors import DumpError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """`FileFacts` identify a process's file: its length, and the CRC-32 of its manifest."""

    size_bytes: int
    manifest_crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpIndex:
    """A `DumpIndex` has the contents of `index.json`.

    Attributes:
        manifest: The manifest of the complete dump, without locations of tensors; those are in the files' manifests.
        files: The facts of every process's file, in the order of processes.
    """

    manifest: Manifest
    files: tuple[FileFacts, ...]


def write_index(path: Path, index: DumpIndex) -> None:
    """Writes an index to a path, crash-safely; on return, it is synced to disk.

    Raises:
        MachineError: The disk is full or fails.
    """
    files: list[Json] = [{"size_bytes": f.size_bytes, "manifest_crc32": f.manifest_crc32} for f in index.files]
    text = dumps({"manifest": manifest_to_json(index.manifest), "files": files}).encode("ascii")
    write_atomically(path, text, replace=True)


def read_index(path: Path) -> DumpIndex:
    """Reads the index in a file.

    Raises:
        DumpError: The file is not an index, or follows a schema that this version does not read.
        MachineError: The file cannot be read.
    """
    with InputFile(path) as file:
        if file.size_bytes > MANIFEST_LIMIT:
            raise DumpError(f"it has {file.size_bytes} bytes, more than {MANIFEST_LIMIT}")
        found = read_text(file.read(0, file.size_bytes), ITEM_READERS, depth=2)
    index = Fields.of(found.rest, "the index", DumpIndex)
    return DumpIndex(
        manifest=manifest_from_json(index.values["manifest"], found.lists),
        files=index.each("files", _file_facts),
    )


def _file_facts(value: Json, position: int) -> FileFacts:
    facts = Fields.of(value, f"file {position}", FileFacts)
    return FileFacts(size_bytes=facts.count("size_bytes"), manifest_crc32=facts.count("manifest_crc32"))
