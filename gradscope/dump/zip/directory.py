"""Reads a zip file's directory strictly, and refuses everything at which a lenient reader would guess.

Lenient readers stop at the first invalid record and keep the members before it, which loses members silently. They
accept two members that share bytes, and two members of the same name.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add, gt
from typing import Any, Final, NamedTuple

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
#: The number of records of which the fields are in memory at once.
_AT_ONCE: Final = 4096
#: The position of the offset of the header among the fields of a member.
_OFFSETS: Final = 6
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


class Members(Mapping[str, ZipMember]):
    """`Members` are those of a zip file by name, in the order of the file.

    Their fields are kept column by column, in a third of the memory of an object for each.

    Args:
        parts: The fields of members, in the order of `ZipMember`, each with those of some members.

    Raises:
        DumpError: Two members have one name.
    """

    def __init__(self, parts: Iterable[Sequence[Sequence[Any]]]) -> None:
        self._columns: list[Any] = [list[str](), *(array("Q") for _ in range(6)), list[bytes]()]
        for part in parts:
            for column, more in zip(self._columns, part, strict=True):
                column.extend(more)
        offsets = self._columns[_OFFSETS]
        if any(map(gt, offsets, offsets[1:])):
            order = sorted(range(len(offsets)), key=offsets.__getitem__)
            self._columns = [[column[at] for at in order] for column in self._columns]
        self._rows = {name: row for row, name in enumerate(self._columns[0])}
        if len(self._rows) != len(offsets):
            raise DumpError("its zip directory names a member twice")

    def fields(self, start: int = 0, stop: int | None = None) -> list[Sequence[Any]]:
        """Returns the fields of the members from one position to another, in the order of `ZipMember`."""
        return [column[start:stop] for column in self._columns]

    def row(self, name: str) -> int:
        """Returns the position of a member."""
        return self._rows[name]

    def __getitem__(self, name: str) -> ZipMember:
        row = self._rows[name]
        return ZipMember._make(column[row] for column in self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A `Directory` is the parsed directory of a zip file.

    Attributes:
        members: Members by name, in the order of the file.
        limits: File offset that the data of each, in that order, may not exceed: that of the next header, or of the
            directory.
        trailing_bytes: Bytes behind the end of the zip file.
    """

    members: Members
    limits: Sequence[int]
    trailing_bytes: int

    def limit(self, name: str) -> int:
        """Returns the limit of a member."""
        return self.limits[self.members.row(name)]


def read_directory(file: InputFile) -> Directory:
    """Reads and checks the directory of a zip file.

    Raises:
        DumpError: The file is not a zip file, is damaged, or contains something that is refused.
    """
    end = find_end(file)
    members = Members(_parse_records(file.read(end.directory_offset, end.directory_bytes), end.members))
    names, _, _, _, compressed, _, offsets, _ = members.fields()
    limits = array("Q", [*offsets[1:], end.directory_offset] if names else [])
    for name, offset, size, limit in zip(names, offsets, compressed, limits, strict=True):
        if offset + LOCAL.size + len(name) + size > limit:
            raise DumpError(f"its member {name!r} overlaps the next")
    return Directory(members=members, limits=limits, trailing_bytes=end.trailing_bytes)


def _parse_records(records: bytes, count: int) -> Iterator[Sequence[Sequence[Any]]]:
    """Yields the fields of the members of some records, a part of them at a time."""
    position = 0
    names: list[str] = []
    while len(names) < count:
        number = min(count - len(names), _AT_ONCE)
        fields, position = _usual_records(records, position, number) or _each_record(
            records, position, number, len(names)
        )
        names += fields[0]
        yield fields
    if position != len(records):
        raise DumpError("its zip directory is longer than its members")
    _require_harmless_names(names)


def _usual_records(records: bytes, position: int, count: int) -> tuple[Sequence[Sequence[Any]], int] | None:
    """Returns what `_each_record` does; None where one of the records is unusual, or wrong."""
    # Field by field and not member by member, which takes half of the time.
    unpack, behind = DIRECTORY.unpack_from, len(records) - DIRECTORY.size
    found: list[tuple[Any, ...]] = []
    starts: list[int] = []
    for _ in range(count):
        if position > behind:
            return None
        fields = unpack(records, position)
        found.append(fields)
        starts.append(position + DIRECTORY.size)
        position += DIRECTORY.size + fields[10] + fields[11] + fields[12]
    signatures, _, _, flags, methods, _, _, crcs, stored, sizes, names, extras, _, disks, _, _, offsets = zip(
        *found, strict=True
    )
    ends = [*map(add, starts, names)]
    usual = (
        position <= len(records)
        and ({*signatures}, {*disks}, {*methods}) == ({DIRECTORY_SIGNATURE}, {0}, {STORED})
        and not any(each & ~_HARMLESS_FLAGS for each in {*flags})
        and stored == sizes
        and max(*sizes, *offsets) < LIMIT_32
        and max(names) <= LIMIT_BYTES
    )
    if not usual:
        return None
    try:
        texts = [records[start:end].decode() for start, end in zip(starts, ends, strict=True)]
        facts = [
            parse_extra(records[end : end + extra]).get(EXTRA_FACTS, b"") if extra else b""
            for end, extra in zip(ends, extras, strict=True)
        ]
    except (UnicodeDecodeError, DumpError):
        return None
    return (texts, flags, methods, crcs, stored, sizes, offsets, facts), position


def _each_record(records: bytes, position: int, count: int, before: int) -> tuple[Sequence[Sequence[Any]], int]:
    """Returns the fields of the members of some records from a position on, and the position behind these.

    Args:
        records: The bytes of all records.
        position: The position of the first of them.
        count: Their number.
        before: The number of the records before them.
    """
    members: list[ZipMember] = []
    try:
        for _ in range(count):
            member, position = _parse_record(records, position)
            members.append(member)
    except DumpError:
        with located(f"record {before + len(members)} of its zip directory"):
            raise
    return [*zip(*members, strict=True)], position


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


def _require_harmless_names(members: Sequence[str]) -> None:
    # All at once, because looking at each takes a third of the time of reading the directory.
    names = "\n".join(["", *members, ""])
    if not any(hint in names for hint in _HOSTILE_HINTS):
        return
    for position, name in enumerate(members):
        if _HOSTILE_NAME.search(name):
            problem = f"its name {name!r:.80} is refused: no tensor's, or one that leads out of the file"
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
