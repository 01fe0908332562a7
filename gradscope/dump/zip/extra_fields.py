"""The extra fields of a zip record: a sequence of kind, length, content."""

from __future__ import annotations

import struct

from gradscope.dump.zip.structures import EXTRA, EXTRA_ZIP64, LIMIT_32
from gradscope.errors import DumpError


def parse_extra(extra: bytes) -> dict[int, bytes]:
    """The contents by kind.

    Raises:
        DumpError: They do not add up, or a kind is there twice.
    """
    fields: dict[int, bytes] = {}
    while extra:
        if len(extra) < EXTRA.size:
            raise DumpError("its extra fields are damaged")
        kind, length = EXTRA.unpack_from(extra)
        content, extra = extra[EXTRA.size : EXTRA.size + length], extra[EXTRA.size + length :]
        if len(content) != length or kind in fields:
            raise DumpError("its extra fields are damaged")
        fields[kind] = content
    return fields


def wide_numbers(fields: dict[int, bytes], numbers: list[int]) -> list[int]:
    """The numbers of a record, in the order of the zip64 field, those that did not fit in 32 bits taken from there.

    Raises:
        DumpError: The field does not have as many.
    """
    missing = numbers.count(LIMIT_32)
    content = fields.get(EXTRA_ZIP64, b"")
    if len(content) < 8 * missing:
        raise DumpError("its zip64 field is damaged")
    wide = iter(struct.unpack_from(f"<{missing}Q", content))
    return [next(wide) if number == LIMIT_32 else number for number in numbers]
