"""Reads a zip file's directory strictly, and refuses everything at which a lenient reader would guess.

Lenient readers stop at the first invalid record and keep the members before it, which loses members silently. They
accept two members that share bytes, and two members of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.zip.end_record import find_end
from gradscope.dump.zip.extra_fields import parse_extra, wide_numbers
from gradscope.dump.zip.member_names import LIMIT_BYTES
from gradscope.dump.zip.structures import (
    DEFLATED,
    DIRECTORY,
    DIRECTORY_SIGNATURE,
    EXTRA_FACTS,
    LIMIT_32,
    LOCAL,
    STORED,
    UTF8_FLAG,
)
from gradscope.errors import DumpError

#: Most bytes into which one deflated byte can decompress.
_LARGEST_RATIO: Final = 1032
#: Flags without effect on reading: the compression level, "sizes follow the data", "the name is UTF-8".
_HARMLESS_FLAGS: Final = 0x6 | 0x8 | UTF8_FLAG
#: What any hostile name has, where names have line feeds around them.
_HOSTILE_HINTS: Final = ("\x00", "\\", "..", ":/", "\n/", "/\n", "\n\n")
_HOSTILE_NAME: Final = re.compile(r"[\x00\\]|\A/|\A[A-Za-z]:/|(?<![^/])\.\.(?=/|\Z)|\A\Z|/\Z")


class ZipMember(NamedTuple):  # which is made in a fifth of a dataclass's time, once for each tensor
    """A `ZipMember` is the directory's record of one member.

    Attributes:
        name: The member's name.
        flags: General-purpose flags.
        method: `STORED` or `DEFLATED`.
        crc32: CRC-32 of the uncompressed data.
        compressed_bytes: Bytes of the data in the file.
        size_bytes: Bytes of the uncompressed data.
        header_offset: File offset of the local header.
        facts: Content of gradscope's extra field; b"" where there is none.
    """

    name: str
    flags: int
    method: int
    crc32: int
    compressed_bytes: int
    size_bytes: int
    header_offset: int
    facts: bytes

    @property
    def smallest_end(self) -> int:
        """A lower bound of the file offset at which the member's data ends."""
        return self.header_offset + LOCAL.size + len(self.name) + self.compressed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A `Directory` is the parsed directory of a zip file.

    Attributes:
        members: Members by name, in the order of the file.
        limits: File offset that each member's data may not exceed: that of the next header, or of the directory.
        trailing_bytes: Bytes behind the end of the zip file.
    """

    members: dict[str, ZipMember]
    limits: dict[str, int]
    trailing_bytes: int


def read_directory(file: InputFile) -> Directory:
    """Reads and checks the directory of a zip file.

    Raises:
        DumpError: The file is not a zip file, is damaged, or contains something that is refused.
    """
    end = find_end(file)
    records = _parse_records(file.read(end.directory_offset, end.directory_bytes), end.members)
    members = sorted(records, key=attrgetter("header_offset"))
    by_name = {member.name: member for member in members}
    if len(by_name) != len(members):
        raise DumpError("its zip directory names a member twice")
    limits = [*(member.header_offset for member in members[1:]), end.directory_offset]
    for member, limit in zip(members, limits, strict=False):
        if member.smallest_end > limit:
            raise DumpError(f"its member {member.name!r} overlaps the next")
    return Directory(
        members=by_name, limits=dict(zip(by_name, limits, strict=False)), trailing_bytes=end.trailing_bytes
    )


def _parse_records(records: bytes, count: int) -> list[ZipMember]:
    position = 0
    members: list[ZipMember] = []
    try:
        for _ in range(count):
            member, position = _parse_record(records, position)
            members.append(member)
    except DumpError:
        with located(f"record {len(members)} of its zip directory"):
            raise
    if position != len(records):
        raise DumpError("its zip directory is longer than its members")
    _require_harmless_names(members)
    return members


def _parse_record(records: bytes, position: int) -> tuple[ZipMember, int]:
    """Returns the member whose record starts at a position, and the position of the next record."""
    start = position + DIRECTORY.size
    if start > len(records):
        raise DumpError("it is cut short")
    signature, _, _, flags, method, _, _, crc32, compressed, size, name, extra, comment, disk, _, _, offset = (
        DIRECTORY.unpack_from(records, position)
    )
    end = start + name + extra + comment
    if signature != DIRECTORY_SIGNATURE or disk != 0 or end > len(records):
        raise DumpError("it is damaged")
    facts = b""
    if extra:  # few members of a dump have any
        fields = parse_extra(records[start + name : start + name + extra])
        # The zip64 field has the sizes in this order.
        size, compressed, offset = wide_numbers(fields, (size, compressed, offset))
        facts = fields.get(EXTRA_FACTS, b"")
    elif LIMIT_32 in (size, compressed, offset):
        wide_numbers({}, (size, compressed, offset))  # which are nowhere
    member = ZipMember(_decoded(records[start : start + name]), flags, method, crc32, compressed, size, offset, facts)
    _require_readable(member)
    return member, end


def _decoded(name: bytes) -> str:
    if len(name) > LIMIT_BYTES:
        raise DumpError(f"its name has {len(name)} bytes, more than {LIMIT_BYTES}")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise DumpError(f"its name {name!r:.80} is not UTF-8") from None


def _require_harmless_names(members: Sequence[ZipMember]) -> None:
    # All at once, because looking at each takes a third of the time of reading the directory.
    names = "\n".join(["", *(member.name for member in members), ""])
    if not any(hint in names for hint in _HOSTILE_HINTS):
        return
    for position, member in enumerate(members):
        if _HOSTILE_NAME.search(member.name):
            problem = f"its name {member.name!r:.80} is refused: no tensor's, or one that leads out of the file"
            raise DumpError(f"record {position} of its zip directory: {problem}")


def _require_readable(member: ZipMember) -> None:
    if member.flags & ~_HARMLESS_FLAGS:
        raise DumpError("it is encrypted, or of a kind that no dump has")
    if member.method not in (STORED, DEFLATED):
        raise DumpError(f"it is compressed by method {member.method}; only stored and deflated members are read")
    if member.method == STORED and member.compressed_bytes != member.size_bytes:
        raise DumpError("it is stored, with two different sizes")
    if member.size_bytes > _LARGEST_RATIO * member.compressed_bytes:
        raise DumpError(f"it claims {member.size_bytes} bytes out of {member.compressed_bytes}: a bomb")
