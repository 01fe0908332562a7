"""Recovers the complete tensors of an unfinished dump: the `.partial` of a killed run, or a truncated file.

The local header of each member describes it, so the zip directory is not needed. The file is read from its start,
member by member, up to the first one that is not complete. Statistics, layers and provenance were in the manifest and
are lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gradscope.arrays.dtypes import is_key
from gradscope.dump.manifest.manifest import MEMBER, RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.member_facts import logical_dtype, stored_as
from gradscope.dump.storage.npy_header import PREFIX_LIMIT, parse_npy_header
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.dump.storage.streams import PlainStream
from gradscope.dump.storage.writing.partial_file import lock
from gradscope.dump.writer import DumpWriter
from gradscope.dump.zip.member_names import key_of_member, member_name
from gradscope.dump.zip.members import LocalHeader, read_local_header
from gradscope.dump.zip.structures import STORED
from gradscope.errors import DumpError, UsageError
from gradscope.naming import key_of, split_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A `Recovery` summarises a recovered dump.

    Attributes:
        path: The new dump.
        tensors: Number of tensors in it.
        size_bytes: Bytes of those tensors.
        lost_bytes: Bytes of the old file behind the last complete tensor that are not read; 0 where it is whole.
        was_whole: Whether the old file is a whole dump, which has more than its tensors.
    """

    path: Path
    tensors: int
    size_bytes: int
    lost_bytes: int
    was_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finished:
    """A `_Finished` is a complete member: the record of its tensor, and the file offset behind it."""

    record: Record
    size_bytes: int
    end: int


def recover(source: str | os.PathLike[str], out: str | os.PathLike[str], *, force: bool = False) -> Recovery:
    """Writes the complete tensors of an unfinished dump into a new one, whose manifest has `complete=False`.

    Memory is bounded by the largest tensor. The unfinished dump is not changed.

    Args:
        source: The unfinished dump.
        out: The path of the new dump.
        force: Whether an existing file at `out` may be replaced.

    Returns:
        A summary of the new dump.

    Raises:
        UsageError: The new dump cannot be written to `out`.
        DumpError: The unfinished dump has no complete tensor, or is still being written.
        MachineError: Reading or writing failed.
    """
    source, out = Path(source), Path(out)
    tensors = size_bytes = end = 0
    with located(str(source)), InputFile(source) as file:
        # If both have the same target, the lock keeps the new dump's writer from removing the old file as a dead one.
        if lock(file.fileno()) is False:
            raise DumpError("it is still being written", hint="wait for the process that writes it to end")
        with DumpWriter(out, force=force, inputs=(source,)) as writer:
            writer.require_space(file.size_bytes)
            for finished in _finished_members(file):
                writer.add(finished.record)
                tensors, size_bytes, end = tensors + 1, size_bytes + finished.size_bytes, finished.end
            if not tensors:
                raise DumpError("no tensor in it is complete")
            writer.commit(RunFacts(complete=False, note=f"recovered from {source.name}"))
    was_whole = _is_whole(source, tensors)
    lost_bytes = 0 if was_whole else file.size_bytes - end
    return Recovery(path=out, tensors=tensors, size_bytes=size_bytes, lost_bytes=lost_bytes, was_whole=was_whole)


def _is_whole(path: Path, tensors: int) -> bool:
    """Returns whether a file opens as a dump of so many tensors."""
    try:
        with open_dump(path, histograms=False) as dump:
            return sum(entry.stored is not None for entry in dump.manifest.entries) == tensors
    except DumpError:
        return False


def _finished_members(file: InputFile) -> Iterator[_Finished]:
    """Yields the complete members of a file, from its start on."""
    keys: set[str] = set()
    position = 0
    while True:
        try:
            finished = _read_member(file, position, len(keys))
        except DumpError:
            return
        key = key_of(finished.record.family, finished.record.name)
        if key in keys:
            return
        keys.add(key)
        position = finished.end
        yield finished


def _read_member(file: InputFile, position: int, number: int) -> _Finished:
    header = read_local_header(file, position)
    end = header.data_offset + header.size_bytes
    if header.name == MEMBER.encode() or header.method != STORED or end > file.size_bytes:
        raise DumpError("it is not the member of a tensor, or not complete")
    tensor = _tensor(file, header)
    array = tensor.array()
    family, name = split_key(_key(header.name))
    record = Record(
        family=family,
        name=name,
        shape=array.shape[:-1] if is_key(tensor.logical) else array.shape,
        dtype=tensor.logical,
        array=array,
        stats={},
        site=SiteFacts(index=number),
    )
    return _Finished(record=record, size_bytes=tensor.size_bytes, end=end)


def _tensor(file: InputFile, header: LocalHeader) -> StoredTensor:
    parsed = parse_npy_header(file.read(header.data_offset, min(PREFIX_LIMIT, header.size_bytes)))
    if parsed.header_bytes + parsed.data_bytes != header.size_bytes:
        raise DumpError(f"its shape {parsed.shape} and its {header.size_bytes} bytes do not agree")
    return StoredTensor(
        shape=parsed.shape,
        logical=logical_dtype(header.facts, parsed.descriptor),
        stored=stored_as(parsed.descriptor),
        fortran=parsed.fortran,
        header_bytes=parsed.header_bytes,
        open_stream=partial(
            PlainStream, file, offset=header.data_offset, size_bytes=header.size_bytes, crc32=header.crc32
        ),
    )


def _key(name: bytes) -> str:
    try:
        key = key_of_member(name.decode())
        if key and member_name(key).encode() == name:
            return key
    except (UnicodeDecodeError, UsageError):
        pass
    raise DumpError(f"its name {name!r:.80} is not one that a dump has")
