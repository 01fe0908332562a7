"""Opens an `.npz` that gradscope wrote, after checking that its manifest and its zip directory agree on every byte."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from gradscope.arrays.dtypes import is_key, storable, stored_dtype
from gradscope.dump.manifest.codec import manifest_from_text
from gradscope.dump.manifest.manifest import MEMBER, Entry, Manifest, Stored
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.member_facts import member_facts
from gradscope.dump.storage.npy_header import NpyHeader, npy_prefix, parse_npy_header
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.dump.storage.streams import ByteStream, PlainStream
from gradscope.dump.zip.directory import Directory, ZipMember
from gradscope.dump.zip.member_names import member_name
from gradscope.dump.zip.members import data_offset, member_stream
from gradscope.dump.zip.structures import STORED
from gradscope.errors import DumpError, UsageError
from gradscope.naming import key_of, printable

#: Longest manifest that is read, in bytes.
MANIFEST_LIMIT: Final = 256 << 20


def read_archive(
    file: InputFile, directory: Directory, *, histograms: bool = True
) -> tuple[Manifest, dict[str, StoredTensor]]:
    """Returns the manifest of a dump file, and a reader for each tensor by key.

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
    members = _members(file, directory)  # behind the manifest, the text of which takes the most memory
    entries = entries_by_key(manifest)
    stored = {key: entry.stored for key, entry in entries.items() if entry.stored is not None}
    _require_same_members(directory, {each.member for each in stored.values()})
    tensors: dict[str, StoredTensor] = {}
    key = ""
    try:
        for key, each in stored.items():
            _require_same_member(key, each, directory.members[each.member])
            tensors[key] = _tensor(file, entries[key], each, members[each.member])
    except DumpError:
        with located(key):
            raise
    return manifest, tensors


class _Data(NamedTuple):
    """_Data has a member, the offset of its data, and the first bytes of its data."""

    member: ZipMember
    offset: int
    prefix: bytes


def _members(file: InputFile, directory: Directory) -> dict[str, _Data]:
    """Returns the data of each member by its name.

    Raises:
        DumpError: There are bytes between the members.
    """
    found: dict[str, _Data] = {}
    prefixes: dict[bytes, bytes] = {}  # tensors of one shape and dtype share theirs
    end = 0
    name = ""
    try:
        for name, member in directory.members.items():
            limit = directory.limits[name]
            if member.method != STORED or member.header_offset != end:
                raise DumpError("it is compressed, or bytes that belong to no member precede it")
            offset = data_offset(file, member, limit)
            end = offset + member.size_bytes
            if end != limit:
                raise DumpError("bytes that belong to no member follow it")
            # Its header is next to the one just read.
            prefix = npy_prefix(file.near, offset, member.size_bytes)
            found[name] = _Data(member, offset, prefixes.setdefault(prefix, prefix))
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
    text = bytearray(member.size_bytes)
    stream = member_stream(file, member, data_offset(file, member, directory.limits[MEMBER]))
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


def _tensor(file: InputFile, entry: Entry, stored: Stored, data: _Data) -> StoredTensor:
    member, offset = data.member, data.offset
    agreed = _agreed(data.prefix, (entry.dtype, entry.shape), stored.dtype, member.size_bytes, member.facts)
    if (stored.offset, stored.size_bytes) != (offset + agreed.header.header_bytes, agreed.data_bytes):
        raise DumpError("its manifest and the zip directory disagree on its offset or size")
    return StoredTensor(
        shape=agreed.header.shape,
        logical=entry.dtype,
        stored=agreed.stored,
        fortran=agreed.header.fortran,
        header_bytes=agreed.header.header_bytes,
        open_stream=_Opens(file, offset, member.size_bytes, member.crc32),
    )


class _Opens(NamedTuple):
    """_Opens opens the stream of a member; it takes a third of the memory of a partial function.

    Nor does it keep what the zip directory says of the member.
    """

    file: InputFile
    offset: int
    size_bytes: int
    crc32: int

    def __call__(self) -> ByteStream:
        return PlainStream(self.file, offset=self.offset, size_bytes=self.size_bytes, crc32=self.crc32)


class _Agreed(NamedTuple):
    """_Agreed has the header of a stored array, the bytes of its elements, and their dtype in the file."""

    header: NpyHeader
    data_bytes: int
    stored: np.dtype[Any]


@lru_cache(maxsize=256)  # tensors of one shape and dtype need one check
def _agreed(
    prefix: bytes, stated: tuple[str, tuple[int, ...]], descriptor: str, size_bytes: int, facts: bytes
) -> _Agreed:
    """Returns what the start of a member says, after checking that its entry and the zip directory say it, too.

    Args:
        prefix: The first bytes of the member.
        stated: The dtype and the shape in its entry.
        descriptor: The descriptor of the stored dtype in its entry.
        size_bytes: The member's size.
        facts: The member's facts.

    Raises:
        DumpError: They disagree.
    """
    (logical, shape), header = stated, parse_npy_header(prefix)
    if header.header_bytes + header.data_bytes != size_bytes:
        raise DumpError(f"its shape {header.shape} and its {size_bytes} bytes do not agree")
    if (header.shape[:-1] if is_key(logical) else header.shape) != shape:
        raise DumpError(f"its manifest states shape {shape}, its header {header.shape}")
    if not storable(logical) or not stored_dtype(logical).str == descriptor == header.descriptor:
        raise DumpError(f"its manifest states dtype {logical!r:.40}, its header {header.descriptor!r}")
    if facts != member_facts(logical):
        raise DumpError(f"its manifest states dtype {logical}, the zip directory {facts!r:.60}")
    return _Agreed(header, header.data_bytes, stored_dtype(logical))
