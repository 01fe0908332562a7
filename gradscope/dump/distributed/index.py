"""The index of a dump of several processes: what the dump holds as a whole, and which files make it up.

Process 0 writes it last. It says of every process's file how long it is and which manifest it carries, so that a file
of another run is told from the one that belongs there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradscope.dump.manifest.codec import manifest_from_json, manifest_to_json
from gradscope.dump.manifest.json_fields import Fields
from gradscope.dump.manifest.json_text import dumps, loads
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.dump.sources.archive import MANIFEST_LIMIT
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.partial_file import PartialFile, sweep
from gradscope.errors import DumpError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """By what a process's file is known: its length, and the CRC-32 of its manifest."""

    size_bytes: int
    manifest_crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIndex:
    """What `index.json` says.

    Attributes:
        manifest: The manifest of the whole; where its tensors are stored is for the files to say.
        files: The file of every process, in order.
    """

    manifest: Manifest
    files: tuple[FileFacts, ...]


def write_index(path: Path, index: ProcessIndex) -> None:
    """Put an index in its place; when this returns it is on the disk.

    Raises:
        MachineError: The disk is full or fails.
    """
    files: list[Json] = [{"size_bytes": f.size_bytes, "manifest_crc32": f.manifest_crc32} for f in index.files]
    text = dumps({"manifest": manifest_to_json(index.manifest), "files": files}).encode("ascii")
    sweep(path)
    file = PartialFile(path)
    try:
        file.create()
        file.write(memoryview(text), 0)
        file.publish(path, len(text))
    finally:
        file.discard()
        file.close()


def read_index(path: Path) -> ProcessIndex:
    """The index that a file holds.

    Raises:
        DumpError: It is not one, or one of a schema that this version does not read.
        MachineError: It cannot be read.
    """
    with InputFile(path) as file:
        if file.size_bytes > MANIFEST_LIMIT:
            raise DumpError(f"it has {file.size_bytes} bytes, more than {MANIFEST_LIMIT}")
        value = loads(file.read(0, file.size_bytes))
    index = Fields.of(value, "the index", ProcessIndex)
    return ProcessIndex(
        manifest=manifest_from_json(index.values["manifest"]),
        files=index.each("files", _file_facts),
    )


def _file_facts(value: Json, position: int) -> FileFacts:
    facts = Fields.of(value, f"file {position}", FileFacts)
    return FileFacts(size_bytes=facts.count("size_bytes"), manifest_crc32=facts.count("manifest_crc32"))
