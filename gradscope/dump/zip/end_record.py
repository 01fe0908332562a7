"""Finds the end record of a zip file, which holds the offset of the directory and the number of members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.zip.structures import (
    DIRECTORY,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    LIMIT_16,
    LIMIT_32,
    LOCAL,
    LOCATOR64,
    LOCATOR64_SIGNATURE,
)
from gradscope.errors import DumpError

MEMBERS_LIMIT: Final = 1_000_000
DIRECTORY_LIMIT: Final = 512 << 20

#: The end record is searched in this many last bytes of the file: a zip comment has at most 65,535 bytes.
_SEARCHED_BYTES: Final = END.size + LIMIT_16


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """An `EndRecord` has the contents of a zip file's end record.

    Attributes:
        members: Number of members.
        directory_offset: File offset of the directory.
        directory_bytes: Bytes of the directory.
        trailing_bytes: Bytes behind the end record, comment included; 0 in a file that gradscope wrote.
    """

    members: int
    directory_offset: int
    directory_bytes: int
    trailing_bytes: int


def find_end(file: InputFile) -> EndRecord:
    """Returns the end record of a zip file.

    Raises:
        DumpError: The file has none, or it contradicts the file.
    """
    offset, record = _find_record(file)
    _, disk, directory_disk, here, *numbers, _ = END.unpack(record)
    if disk or directory_disk or here != numbers[0]:
        raise DumpError("it is a part of a zip file of several disks")
    directory_end = offset
    if _has_zip64(file, offset):
        directory_end -= LOCATOR64.size + END64.size
        numbers = _parse_zip64(file, directory_end, numbers)
    members, directory_bytes, directory_offset = numbers
    if directory_offset + directory_bytes != directory_end:
        raise DumpError("its zip directory is not at the offset that its end record states")
    _require_limits(members, directory_bytes, directory_offset)
    trailing_bytes = file.size_bytes - offset - END.size
    return EndRecord(
        members=members,
        directory_offset=directory_offset,
        directory_bytes=directory_bytes,
        trailing_bytes=trailing_bytes,
    )


def _find_record(file: InputFile) -> tuple[int, bytes]:
    """Returns the offset and the bytes of the last end record."""
    searched = min(_SEARCHED_BYTES, file.size_bytes)
    start = file.size_bytes - searched
    tail = file.read(start, searched)
    position = tail.rfind(END_SIGNATURE, 0, max(0, searched - END.size + len(END_SIGNATURE)))
    if position < 0:
        raise DumpError(
            "it has no zip directory: it is cut short, or something else than a dump",
            hint="gradscope recover saves the finished tensors of a dump that is cut short",
        )
    return start + position, tail[position : position + END.size]


def _has_zip64(file: InputFile, end_offset: int) -> bool:
    offset = end_offset - LOCATOR64.size
    return offset >= END64.size and file.read(offset, len(LOCATOR64_SIGNATURE)) == LOCATOR64_SIGNATURE


def _parse_zip64(file: InputFile, offset: int, in_short: list[int]) -> list[int]:
    """Returns number of members, directory size and directory offset from the zip64 end record at an offset.

    Args:
        file: The zip file.
        offset: The offset at which the record has to be.
        in_short: The same numbers from the ordinary end record, where each is capped at its field's largest value.
    """
    signature, _, _, _, disk, directory_disk, here, *numbers = END64.unpack(file.read(offset, END64.size))
    locator = LOCATOR64.unpack(file.read(offset + END64.size, LOCATOR64.size))
    fitting = [min(number, limit) for number, limit in zip(numbers, (LIMIT_16, LIMIT_32, LIMIT_32), strict=True)]
    sound = signature == END64_SIGNATURE and locator == (LOCATOR64_SIGNATURE, 0, offset, 1) and fitting == in_short
    if not sound or disk or directory_disk or here != numbers[0]:
        raise DumpError("its zip64 end record is damaged")
    return numbers


def _require_limits(members: int, directory_bytes: int, directory_offset: int) -> None:
    """Raises an error where the directory is too large to read, or the file too small for the claimed members."""
    if members > MEMBERS_LIMIT or directory_bytes > DIRECTORY_LIMIT:
        raise DumpError(f"its zip directory claims {members} members in {directory_bytes} bytes, too many to read")
    if members * DIRECTORY.size > directory_bytes or members * LOCAL.size > directory_offset:
        raise DumpError(f"its zip directory claims {members} members, more than the file has room for")
