"""From a member's record in the directory to its bytes, its own header compared with the record on the way."""

from __future__ import annotations

from typing import Final

from gradscope.dump.inputfile import InputFile
from gradscope.dump.streams import ByteStream, InflatingStream, PlainStream
from gradscope.dump.zipdirectory import Member
from gradscope.dump.zipextra import parse_extra, wide_numbers
from gradscope.dump.zipformat import EXTRA_FACTS, LOCAL, LOCAL_SIGNATURE, STORED
from gradscope.errors import DumpError

#: Flag of a member whose header was written before its size was known.
_SIZES_FOLLOW: Final = 0x8


def data_offset(file: InputFile, member: Member, limit: int) -> int:
    """The file offset of a member's first byte.

    Args:
        file: The zip file.
        member: The member.
        limit: The file offset up to which it may reach.

    Raises:
        DumpError: Its header says something else than the directory, or its data reaches too far.
    """
    encoded = member.name.encode()
    header = file.read(member.header_offset, LOCAL.size)
    signature, _, flags, method, _, _, crc32, *sizes, name, extra = LOCAL.unpack(header)
    variable = file.read(member.header_offset + LOCAL.size, name + extra)
    if (signature, flags, method, variable[:name]) != (LOCAL_SIGNATURE, member.flags, member.method, encoded):
        raise DumpError("its header is not the one that the zip directory describes")
    fields = parse_extra(variable[name:])
    found = (crc32, *reversed(wide_numbers(fields, list(reversed(sizes)))))
    unknown = member.flags & _SIZES_FOLLOW and found == (0, 0, 0)
    if not unknown and found != (member.crc32, member.compressed_bytes, member.size_bytes):
        raise DumpError("its header and the zip directory disagree on its size or CRC-32")
    if fields.get(EXTRA_FACTS, b"") != member.facts:
        raise DumpError("its header and the zip directory disagree on its dtype")
    offset = member.header_offset + LOCAL.size + name + extra
    if offset + member.compressed_bytes > limit:
        raise DumpError("its data overlaps the next member or the zip directory")
    return offset


def member_stream(file: InputFile, member: Member, offset: int) -> ByteStream:
    """A member's bytes, whose first is at an offset of the file."""
    if member.method == STORED:
        return PlainStream(file, offset=offset, size_bytes=member.size_bytes, crc32=member.crc32)
    return InflatingStream(file, offset=offset, compressed_bytes=member.compressed_bytes, crc32=member.crc32)
