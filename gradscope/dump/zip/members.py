"""Finds the bytes of a member, after comparing its local header with its record in the directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, gt
from typing import Any, Final, NamedTuple

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.streams import ByteStream, InflatingStream, PlainStream
from gradscope.dump.zip.directory import Directory, ZipMember
from gradscope.dump.zip.extra_fields import parse_extra, wide_numbers
from gradscope.dump.zip.structures import EXTRA_FACTS, LIMIT_32, LOCAL, LOCAL_SIGNATURE, STORED
from gradscope.errors import DumpError

#: Flag of a member whose header was written before its size was known.
_SIZES_FOLLOW: Final = 0x8

#: Bytes that most local headers do not exceed, with the name and the padding.
_USUAL_BYTES: Final = 192

#: The number of members of which the headers are in memory at once.
_AT_ONCE: Final = 4096


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
    header = start if end <= len(start) else file.near(offset, end)
    fields = parse_extra(header[names:end])
    if LIMIT_32 in (size, compressed):
        size, compressed = wide_numbers(fields, (size, compressed))
    name, facts = header[LOCAL.size : names], fields.get(EXTRA_FACTS, b"")
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


def data_starts(file: InputFile, directory: Directory, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields for each member, in the order of the file, what `data_offset` returns, and the first bytes of its data.

    Args:
        file: The zip file.
        directory: Its directory.
        size_bytes: The number of first bytes; fewer of a member that has fewer.

    Raises:
        DumpError: As for `data_offset`, where the iterator is at that member.
    """
    for start in range(0, len(directory.limits), _AT_ONCE):
        fields = directory.members.fields(start, start + _AT_ONCE)
        limits = directory.limits[start : start + _AT_ONCE]
        usual = _usual_starts(file, fields, limits, size_bytes)
        if usual is not None:
            yield from usual
            continue
        for member, limit in zip(map(ZipMember._make, zip(*fields, strict=True)), limits, strict=True):
            offset = data_offset(file, member, limit)
            yield offset, file.near(offset, min(size_bytes, member.size_bytes))


def _usual_starts(
    file: InputFile, members: Sequence[Sequence[Any]], limits: Sequence[int], size_bytes: int
) -> list[tuple[int, bytes]] | None:
    """Returns what `data_starts` yields; None where one of the headers is unusual, or wrong."""
    # Field by field and not member by member, which takes a third of the time.
    names, flags, methods, crcs, stored, sizes, offsets, facts = map(list, members)
    file_size, longest = file.size_bytes, _USUAL_BYTES + size_bytes
    starts = [file.near(offset, min(longest, file_size - offset)) for offset in offsets]
    fields = zip(*map(LOCAL.unpack_from, starts), strict=True)
    signatures, _, *found, name_bytes, extra_bytes = fields
    name_ends = [LOCAL.size + each for each in name_bytes]
    ends = [*map(add, name_ends, extra_bytes)]
    try:
        extras = [start[name:end] for start, name, end in zip(starts, name_ends, ends, strict=True)]
        known = {extra: parse_extra(extra).get(EXTRA_FACTS, b"") for extra in {*extras}}
    except DumpError:
        return None
    usual = (
        {*signatures} == {LOCAL_SIGNATURE}
        and [found[0], found[1], *found[4:]] == [*map(tuple, (flags, methods, crcs, stored, sizes))]
        and max(sizes) < LIMIT_32
        and max(ends) <= _USUAL_BYTES
        and [start[LOCAL.size : end] for start, end in zip(starts, name_ends, strict=True)] == [*map(str.encode, names)]
        and [known[extra] for extra in extras] == facts
    )
    behind = [*map(add, offsets, ends)]
    if not usual or any(map(gt, map(add, behind, sizes), limits)):
        return None
    return [
        (offset, start[end : end + size_bytes if size >= size_bytes else end + size])
        for offset, start, end, size in zip(behind, starts, ends, sizes, strict=True)
    ]


def member_stream(file: InputFile, member: ZipMember, offset: int) -> ByteStream:
    """Opens a stream of a member's bytes, the first of which is at `offset`."""
    if member.method == STORED:
        return PlainStream(file, offset=offset, size_bytes=member.size_bytes, crc32=member.crc32)
    return InflatingStream(file, offset=offset, compressed_bytes=member.compressed_bytes, crc32=member.crc32)
