"""Encodes the zip structures of a dump as bytes: local headers, directory records and end records.

- Members are stored, never deflated.
- Members are dated 1980-01-01, so that equal dumps are equal bytes.
- Their data starts at a multiple of 64 bytes, so that a reader can map it into memory.
- Sizes that do not fit in 32 bits, and more than 65,534 members, use the zip64 fields.

Two extra fields are written:

- `0x5347` ("GS"), in header and directory: a JSON object of facts that the member's `.npy` header cannot hold;
- `0xD935`, in the header only: the padding, as Android's zipalign writes it.

References:
    PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 to 4.3.16 and 4.5.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

LOCAL_SIGNATURE: Final = b"PK\x03\x04"
DIRECTORY_SIGNATURE: Final = b"PK\x01\x02"
END_SIGNATURE: Final = b"PK\x05\x06"
END64_SIGNATURE: Final = b"PK\x06\x06"
LOCATOR64_SIGNATURE: Final = b"PK\x06\x07"

#: signature, version needed, flags, method, time, date, CRC, stored size, size, name length, extra length
LOCAL: Final = struct.Struct("<4s5H3L2H")
#: signature, version made by, and as above; then comment length, disk, internal and external attributes, header offset
DIRECTORY: Final = struct.Struct("<4s6H3L5H2L")
#: signature, this disk, the directory's disk, members on this disk, members, directory size, directory offset, comment
END: Final = struct.Struct("<4s4H2LH")
#: signature, size of the rest, versions, disks, members on this disk, members, directory size, directory offset
END64: Final = struct.Struct("<4sQ2H2L4Q")
#: signature, the end record's disk, its offset, number of disks
LOCATOR64: Final = struct.Struct("<4sLQL")
EXTRA: Final = struct.Struct("<2H")

STORED: Final = 0
DEFLATED: Final = 8
UTF8_FLAG: Final = 0x800
#: The value that means "see the zip64 field", which is also the smallest value that needs the field.
LIMIT_32: Final = 0xFFFFFFFF
LIMIT_16: Final = 0xFFFF
EXTRA_ZIP64: Final = 0x0001
EXTRA_FACTS: Final = 0x5347
EXTRA_PADDING: Final = 0xD935
ALIGNMENT: Final = 64
#: Offset of the CRC in a local header.
CRC_OFFSET: Final = 14

_VERSION: Final = 45
_MADE_ON_UNIX: Final = 3 << 8
_REGULAR_FILE: Final = 0o100644 << 16
_DATE_1980: Final = (0, 1 << 5 | 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMember:
    """A `WrittenMember` is one member of the file that is being written.

    Attributes:
        name: The name in UTF-8.
        crc32: CRC-32 of the data; 0 while it is unknown.
        size_bytes: Bytes of the data.
        header_offset: File offset of the local header.
        facts: JSON text of the extra field; b"" for none.
    """

    name: bytes
    crc32: int
    size_bytes: int
    header_offset: int
    facts: bytes


def local_header(member: WrittenMember) -> bytes:
    """Returns a member's local header, padded so that the data behind it starts at a multiple of `ALIGNMENT`."""
    large = member.size_bytes >= LIMIT_32
    extra = _extra(EXTRA_ZIP64, struct.pack("<2Q", member.size_bytes, member.size_bytes)) if large else b""
    extra += _facts(member)
    extra += _padding(member.header_offset + LOCAL.size + len(member.name) + len(extra))
    size = min(member.size_bytes, LIMIT_32)
    common = (_VERSION, UTF8_FLAG, STORED, *_DATE_1980, member.crc32, size, size, len(member.name), len(extra))
    return LOCAL.pack(LOCAL_SIGNATURE, *common) + member.name + extra


def directory_record(member: WrittenMember) -> bytes:
    """Returns a member's record in the directory."""
    sizes = [member.size_bytes] * 2 if member.size_bytes >= LIMIT_32 else []
    offsets = [member.header_offset] if member.header_offset >= LIMIT_32 else []
    large = [*sizes, *offsets]
    extra = _extra(EXTRA_ZIP64, struct.pack(f"<{len(large)}Q", *large)) if large else b""
    extra += _facts(member)
    size = min(member.size_bytes, LIMIT_32)
    common = (_VERSION, UTF8_FLAG, STORED, *_DATE_1980, member.crc32, size, size, len(member.name), len(extra))
    location = (0, 0, 0, _REGULAR_FILE, min(member.header_offset, LIMIT_32))
    return DIRECTORY.pack(DIRECTORY_SIGNATURE, _VERSION | _MADE_ON_UNIX, *common, *location) + member.name + extra


def end_records(*, members: int, directory_offset: int, directory_bytes: int) -> bytes:
    """Returns the records behind the directory, with zip64 records where a number does not fit otherwise."""
    end = END.pack(
        *(END_SIGNATURE, 0, 0, *(min(members, LIMIT_16),) * 2),
        *(min(directory_bytes, LIMIT_32), min(directory_offset, LIMIT_32), 0),
    )
    if members < LIMIT_16 and directory_bytes < LIMIT_32 and directory_offset < LIMIT_32:
        return end
    versions_and_disks = (_VERSION | _MADE_ON_UNIX, _VERSION, 0, 0)
    numbers = (members, members, directory_bytes, directory_offset)
    end64 = END64.pack(END64_SIGNATURE, END64.size - 12, *versions_and_disks, *numbers)
    return end64 + LOCATOR64.pack(LOCATOR64_SIGNATURE, 0, directory_offset + directory_bytes, 1) + end


def _facts(member: WrittenMember) -> bytes:
    return _extra(EXTRA_FACTS, member.facts) if member.facts else b""


def _padding(offset: int) -> bytes:
    smallest = EXTRA.size + 2
    return _extra(EXTRA_PADDING, struct.pack("<H", ALIGNMENT) + bytes(-(offset + smallest) % ALIGNMENT))


def _extra(kind: int, content: bytes) -> bytes:
    return EXTRA.pack(kind, len(content)) + content
