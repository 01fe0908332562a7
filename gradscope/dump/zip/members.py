"""Finds the bytes of a member, after comparing its local header with its record in the directory."""

from __future__ import annotations

from typing import Final, NamedTuple

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.streams import ByteStream, InflatingStream, PlainStream
from gradscope.dump.zip.directory import ZipMember
from gradscope.dump.zip.extra_fields import parse_extra, wide_numbers
from gradscope.dump.zip.structures import EXTRA_FACTS, LIMIT_32, LOCAL, LOCAL_SIGNATURE, STORED
from gradscope.errors import DumpError

#: Flag of a member whose header was written before its size was known.
_SIZES_FOLLOW: Final = 0x8

#: Bytes that most local headers do not exceed, with the name and the padding.
_USUAL_BYTES: Final = 192


class LocalHeader(NamedTuple):
    """A `LocalHeader` is in front of a member's data: the fields of `ZipMember`, and the file offset of the data."""

    name: bytes
    flags: int
    method: int
    crc32: int
    compressed_bytes: int
    size_bytes: int
    facts: bytes
    data_offset: int


def read_local_header(file: InputFile, offset: int) -> LocalHeader:
    """Parses the local header at an offset.

    Raises:
        DumpError: There is no local header, or it is damaged.
    """
    # One read of what a header has as a rule takes half as long as two of its parts.
    start = file.near(offset, max(LOCAL.size, min(_USUAL_BYTES, file.size_bytes - offset)))
    signature, _, flags, method, _, _, crc32, compressed, size, name_bytes, extra_bytes = LOCAL.unpack_from(start)
    if signature != LOCAL_SIGNATURE:
        raise DumpError("it has no header")
    names, end = LOCAL.size + name_bytes, LOCAL.size + name_bytes + extra_bytes
    whole = start if end <= len(start) else file.near(offset, end)
    fields = parse_extra(whole[names:end])
    if LIMIT_32 in (size, compressed):
        size, compressed = wide_numbers(fields, (size, compressed))
    name, facts = whole[LOCAL.size : names], fields.get(EXTRA_FACTS, b"")
    return LocalHeader(name, flags, method, crc32, compressed, size, facts, offset + end)


def data_offset(file: InputFile, member: ZipMember, limit: int) -> int:
    """Returns the file offset of the first byte of a member's data.

    Args:
        file: The zip file.
        member: The member.
        limit: The file offset at which its data has to end at the latest.

    Raises:
        DumpError: The local header contradicts the directory, or the data reaches beyond the limit.
    """
    header = read_local_header(file, member.header_offset)
    if (header.name, header.flags, header.method) != (member.name.encode(), member.flags, member.method):
        raise DumpError("its header and the zip directory disagree on its name or kind")
    found = header.crc32, header.compressed_bytes, header.size_bytes
    unknown = member.flags & _SIZES_FOLLOW and found == (0, 0, 0)
    if not unknown and found != (member.crc32, member.compressed_bytes, member.size_bytes):
        raise DumpError("its header and the zip directory disagree on its size or CRC-32")
    if header.facts != member.facts:
        raise DumpError("its header and the zip directory disagree on its dtype")
    if header.data_offset + member.compressed_bytes > limit:
        raise DumpError("its data overlaps the next member or the zip directory")
    return header.data_offset


def member_stream(file: InputFile, member: ZipMember, offset: int) -> ByteStream:
    """Opens a stream of a member's bytes, the first of which is at `offset`."""
    if member.method == STORED:
        return PlainStream(file, offset=offset, size_bytes=member.size_bytes, crc32=member.crc32)
    return InflatingStream(file, offset=offset, compressed_bytes=member.compressed_bytes, crc32=member.crc32)
