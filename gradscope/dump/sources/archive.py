"""Opens an `.npz` that gradscope wrote, after checking that its manifest and its zip directory agree on every byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.dtypes import is_key, storable, stored_dtype
from gradscope.dump.manifest.codec import manifest_from_text
from gradscope.dump.manifest.entries.released_text import new_text
from gradscope.dump.manifest.manifest import MEMBER, Entry, Manifest, Stored
from gradscope.dump.sources.dump_file import Contents
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.member_facts import member_facts
from gradscope.dump.storage.npy_header import USUAL_HEADER, NpyHeader, npy_prefix, parse_npy_header
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.dump.storage.streams import PlainStream
from gradscope.dump.zip.directory import Directory, ZipMember
from gradscope.dump.zip.member_names import member_name
from gradscope.dump.zip.members import data_offset, data_starts, member_stream
from gradscope.dump.zip.structures import STORED
from gradscope.errors import DumpError, UsageError
from gradscope.naming import key_of, printable

#: Longest manifest that is read, in bytes.
MANIFEST_LIMIT: Final = 256 << 20

#: The offset of a member's data, and its first bytes.
_Start: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveContents(Contents):
    """`ArchiveContents` are those of one file, each tensor of which is complete."""

    tensors: Mapping[str, StoredTensor]


def read_archive(file: InputFile, directory: Directory, *, histograms: bool = True) -> ArchiveContents:
    """Returns the contents of a dump file.

    Args:
        file: The file.
        directory: Its zip directory.
        histograms: Whether the statistics need their histograms.

    Raises:
        DumpError: The file is damaged, or follows a schema that this version does not read.
    """
    if directory.trailing_bytes:
        raise DumpError(f"{directory.trailing_bytes} bytes follow its end")
    with located("its manifest"):
        manifest = _read_manifest(file, directory, histograms=histograms)
    starts = _starts(file, directory)  # behind the manifest, the text of which takes the most memory
    named = entries_by_key(manifest)
    entries = {key: entry for key, entry in named.items() if entry.stored is not None}
    stored = [entry.stored for entry in entries.values() if entry.stored is not None]
    _require_same_members(directory, {each.member for each in stored})
    headers = _usual_agreements(directory, entries, stored, starts)
    if headers is None:
        headers = _each_agreement(directory, entries, stored, starts)
    tensors = _Tensors(file, named, dict(zip(entries, headers, strict=True)))
    return ArchiveContents(manifest=manifest, tensors=tensors, entries=named)


class _Tensors(Mapping[str, StoredTensor]):
    """_Tensors has the readers of a file's tensors by key. Each is made when it is requested, as most are not.

    Args:
        file: The file.
        entries: The entries by key.
        headers: What is known of the start of each tensor.
    """

    def __init__(self, file: InputFile, entries: Mapping[str, Entry], headers: Mapping[str, _Agreed]) -> None:
        self._file = file
        self._entries = entries
        self._headers = headers

    def __getitem__(self, key: str) -> StoredTensor:
        entry, agreed = self._entries[key], self._headers[key]
        assert entry.stored is not None, "only the entries of tensors are here"
        header, stored = agreed.header, entry.stored
        offset, size_bytes = stored.offset - header.header_bytes, stored.size_bytes + header.header_bytes
        return StoredTensor(
            shape=header.shape,
            logical=entry.dtype,
            stored=agreed.stored,
            fortran=header.fortran,
            header_bytes=header.header_bytes,
            open_stream=partial(PlainStream, self._file, offset=offset, size_bytes=size_bytes, crc32=stored.crc32),
        )

    def __contains__(self, key: object) -> bool:
        return key in self._headers

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)


def _starts(file: InputFile, directory: Directory) -> dict[str, _Start]:
    """Returns the offset of each member's data, and its first bytes, by the member's name.

    Raises:
        DumpError: There are bytes between the members.
    """
    found: dict[str, _Start] = {}
    prefixes: dict[bytes, bytes] = {}  # tensors of one shape and dtype share theirs
    names, _, methods, _, _, sizes, offsets, _ = directory.members.fields()
    starts = data_starts(file, directory, USUAL_HEADER)
    end = 0
    name = ""
    try:
        members = zip(names, methods, sizes, offsets, directory.limits, strict=True)
        for name, method, size_bytes, header_offset, limit in members:
            if method != STORED or header_offset != end:
                raise DumpError("it is compressed, or bytes that belong to no member precede it")
            offset, start = next(starts)
            end = offset + size_bytes
            if end != limit:
                raise DumpError("bytes that belong to no member follow it")
            prefix = prefixes.get(start)
            if prefix is None:
                prefix = npy_prefix(file.near, offset, size_bytes)
                if prefix == start:
                    prefixes[start] = prefix
            found[name] = offset, prefix
    except DumpError:
        with located(name):
            raise
    return found


def _read_manifest(file: InputFile, directory: Directory, *, histograms: bool) -> Manifest:
    member = directory.members[MEMBER]
    if member.method != STORED:
        raise DumpError("it is compressed")
    if member.size_bytes > MANIFEST_LIMIT:
        raise DumpError(f"it has {member.size_bytes} bytes, more than {MANIFEST_LIMIT}")
    if not member.size_bytes:
        raise DumpError("it is empty")
    text = new_text(member.size_bytes)
    stream = member_stream(file, member, data_offset(file, member, directory.limit(MEMBER)))
    stream.fill(memoryview(text))
    stream.finish()
    return manifest_from_text(text, histograms=histograms)


def entries_by_key(manifest: Manifest) -> dict[str, Entry]:
    """Returns the entries of a manifest by key.

    Raises:
        DumpError: A key occurs twice, or an alias does not refer to a tensor.
    """
    entries = {key_of(entry.family, entry.name): entry for entry in manifest.entries}
    if len(entries) != len(manifest.entries):
        raise DumpError("its manifest names a tensor twice")
    for key, entry in entries.items():
        if entry.alias_of is None:
            continue
        own = entries.get(entry.alias_of)
        if own is None or own.alias_of is not None or entry.stored is not None:
            raise DumpError(
                f"{printable(key)} is an alias of {printable(entry.alias_of)}, which is no tensor of its own"
            )
    return entries


def _require_same_members(directory: Directory, named: set[str]) -> None:
    found = directory.members.keys() - {MEMBER}
    if missing := named - found:
        raise DumpError(f"it lacks the member {min(missing)!r} that its manifest names")
    if unknown := found - named:
        raise DumpError(f"it has a member {min(unknown)!r} that its manifest does not name")


def _require_same_member(key: str, stored: Stored, member: ZipMember) -> None:
    try:
        expected = member_name(key)
    except UsageError as error:
        raise DumpError(error.message) from error
    if stored.member != expected or stored.crc32 != member.crc32:
        raise DumpError("its manifest and the zip directory disagree on its name or CRC-32")


def _usual_agreements(
    directory: Directory,
    entries: Mapping[str, Entry],
    stored: Sequence[Stored],
    starts: Mapping[str, tuple[int, bytes]],
) -> list[_Agreed] | None:
    """Returns what `_each_agreement` does; None where the file and its manifest disagree on a tensor."""
    # Field by field and not tensor by tensor, which takes a third of the time.
    names = [each.member for each in stored]
    rows, found = [*map(directory.members.row, names)], [*map(starts.__getitem__, names)]
    _, _, _, crcs, _, sizes, _, facts = ([column[row] for row in rows] for column in directory.members.fields())
    try:
        if names != [*map(member_name, entries)]:
            return None
        kinds = [
            (prefix, entry.dtype, each.dtype, size_bytes, fact)
            for (_, prefix), entry, each, size_bytes, fact in zip(
                found, entries.values(), stored, sizes, facts, strict=True
            )
        ]
        # Tensors of one shape and dtype need one check. A kind has no shape of the manifest's: any number of these may
        # have one hash. Bytes and texts are hashed with a secret.
        known = {kind: _agreed(*kind) for kind in {*kinds}}
    except (DumpError, UsageError):
        return None
    agreed = [known[kind] for kind in kinds]
    behind = [offset + each.header.header_bytes for (offset, _), each in zip(found, agreed, strict=True)]
    same = (
        [entry.shape for entry in entries.values()] == [each.shape for each in agreed]
        and [each.crc32 for each in stored] == crcs
        and [each.offset for each in stored] == behind
        and [each.size_bytes for each in stored] == [each.data_bytes for each in agreed]
    )
    return agreed if same else None


def _each_agreement(
    directory: Directory,
    entries: Mapping[str, Entry],
    stored: Sequence[Stored],
    starts: Mapping[str, tuple[int, bytes]],
) -> list[_Agreed]:
    """Returns what the start of each tensor's member says, after checking that the manifest says it, too.

    Args:
        directory: The zip directory.
        entries: The entries of the tensors by key.
        stored: What they say of where the tensors are.
        starts: The offset of each member's data, and its first bytes, by the member's name.

    Raises:
        DumpError: The manifest and the file disagree on a tensor.
    """
    found: list[_Agreed] = []
    key = ""
    try:
        for (key, entry), each in zip(entries.items(), stored, strict=True):
            member, (offset, prefix) = directory.members[each.member], starts[each.member]
            _require_same_member(key, each, member)
            agreed = _agreed(prefix, entry.dtype, each.dtype, member.size_bytes, member.facts)
            if entry.shape != agreed.shape:
                raise DumpError(f"its manifest states shape {entry.shape}, its header {agreed.header.shape}")
            if (each.offset, each.size_bytes) != (offset + agreed.header.header_bytes, agreed.data_bytes):
                raise DumpError("its manifest and the zip directory disagree on its offset or size")
            found.append(agreed)
    except DumpError:
        with located(key):
            raise
    return found


class _Agreed(NamedTuple):
    """_Agreed has the header of a stored array, the bytes of its elements, their dtype in the file, and the shape."""

    header: NpyHeader
    data_bytes: int
    stored: np.dtype[Any]
    shape: tuple[int, ...]


def _agreed(prefix: bytes, logical: str, descriptor: str, size_bytes: int, facts: bytes) -> _Agreed:
    """Returns what the start of a member says, after checking that its entry and the zip directory say it, too.

    Args:
        prefix: The first bytes of the member.
        logical: The dtype in its entry.
        descriptor: That of the stored dtype there.
        size_bytes: The member's size.
        facts: The member's facts.

    Raises:
        DumpError: They disagree.
    """
    header = parse_npy_header(prefix)
    if header.header_bytes + header.data_bytes != size_bytes:
        raise DumpError(f"its shape {header.shape} and its {size_bytes} bytes do not agree")
    if not storable(logical) or not stored_dtype(logical).str == descriptor == header.descriptor:
        raise DumpError(f"its manifest states dtype {logical!r:.40}, its header {header.descriptor!r}")
    if facts != member_facts(logical):
        raise DumpError(f"its manifest states dtype {logical}, the zip directory {facts!r:.60}")
    shape = header.shape[:-1] if is_key(logical) else header.shape
    return _Agreed(header, header.data_bytes, stored_dtype(logical), shape)
