"""Opens an `.npz` that gradscope wrote, after checking that its manifest and its zip directory agree on every byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from gradscope.arrays.dtypes import is_key, storable, stored_dtype
from gradscope.dump.manifest.codec import manifest_from_text
from gradscope.dump.manifest.manifest import MEMBER, Entry, Manifest, Stored
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.member_facts import member_facts
from gradscope.dump.storage.npy_header import NpyHeader, npy_prefix, parse_npy_header
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.dump.zip.directory import Directory, ZipMember
from gradscope.dump.zip.member_names import member_name
from gradscope.dump.zip.members import data_offset, member_stream
from gradscope.dump.zip.structures import STORED
from gradscope.errors import DumpError, UsageError
from gradscope.naming import key_of, printable

#: Longest manifest that is read, in bytes.
MANIFEST_LIMIT: Final = 256 << 20


def read_archive(file: InputFile, directory: Directory) -> tuple[Manifest, dict[str, StoredTensor]]:
    """Returns the manifest of a dump file, and a reader for each tensor by key.

    Raises:
        DumpError: The file is damaged, or follows a schema that this version does not read.
    """
    if directory.trailing_bytes:
        raise DumpError(f"{directory.trailing_bytes} bytes follow its end")
    members = _members(file, directory)
    with located("its manifest"):
        manifest = _read_manifest(file, members[MEMBER])
    entries = entries_by_key(manifest)
    stored = {key: entry.stored for key, entry in entries.items() if entry.stored is not None}
    _require_same_members(directory, {each.member for each in stored.values()})
    tensors: dict[str, StoredTensor] = {}
    for key, each in stored.items():
        with located(key):
            _require_same_member(key, each, directory.members[each.member])
            tensors[key] = _tensor(file, entries[key], each, members[each.member])
    return manifest, tensors


@dataclass(frozen=True, slots=True)
class _Data:
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
    end = 0
    for name, member in directory.members.items():
        with located(name):
            if member.method != STORED or member.header_offset != end:
                raise DumpError("it is compressed, or bytes that belong to no member precede it")
            offset = data_offset(file, member, directory.limits[name])
            end = offset + member.size_bytes
            if end != directory.limits[name]:
                raise DumpError("bytes that belong to no member follow it")
            # Its header is next to the one just read.
            found[name] = _Data(member, offset, npy_prefix(file.near, offset, member.size_bytes))
    return found


def _read_manifest(file: InputFile, data: _Data) -> Manifest:
    member = data.member
    if member.size_bytes > MANIFEST_LIMIT:
        raise DumpError(f"it has {member.size_bytes} bytes, more than {MANIFEST_LIMIT}")
    text = bytearray(member.size_bytes)
    stream = member_stream(file, member, data.offset)
    stream.fill(memoryview(text))
    stream.finish()
    return manifest_from_text(bytes(text))


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
    header = parse_npy_header(data.prefix)
    if header.header_bytes + header.data_bytes != member.size_bytes:
        raise DumpError(f"its shape {header.shape} and its {member.size_bytes} bytes do not agree")
    _require_agreement(entry, stored, member, header, offset)
    return StoredTensor(
        shape=header.shape,
        logical=entry.dtype,
        stored=stored_dtype(entry.dtype),
        fortran=header.fortran,
        header_bytes=header.header_bytes,
        open_stream=partial(member_stream, file, member, offset),
    )


def _require_agreement(entry: Entry, stored: Stored, member: ZipMember, header: NpyHeader, offset: int) -> None:
    """Raises an error where an entry does not describe the stored array."""
    shape = header.shape[:-1] if is_key(entry.dtype) else header.shape
    if shape != entry.shape:
        raise DumpError(f"its manifest states shape {entry.shape}, its header {header.shape}")
    if not storable(entry.dtype) or not stored_dtype(entry.dtype).str == stored.dtype == header.descriptor:
        raise DumpError(f"its manifest states dtype {entry.dtype!r:.40}, its header {header.descriptor!r}")
    if member.facts != member_facts(entry.dtype):
        raise DumpError(f"its manifest states dtype {entry.dtype}, the zip directory {member.facts!r:.60}")
    if (stored.offset, stored.size_bytes) != (offset + header.header_bytes, header.data_bytes):
        raise DumpError("its manifest and the zip directory disagree on its offset or size")
