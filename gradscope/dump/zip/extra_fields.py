"""Parses the extra fields of a zip record: a sequence of kind, length and content."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from gradscope.dump.zip.structures import EXTRA, EXTRA_ZIP64, LIMIT_32
from gradscope.errors import DumpError


@lru_cache(maxsize=128)  # most members have the same
def parse_extra(extra: bytes) -> Mapping[int, bytes]:
    """Returns the contents of the extra fields by kind.

    Raises:
        DumpError: The lengths do not add up, or a kind occurs twice.
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


def wide_numbers(fields: Mapping[int, bytes], numbers: Sequence[int]) -> Sequence[int]:
    """Returns the numbers of a record, with those that did not fit in 32 bits replaced from the zip64 field.

    Args:
        fields: The record's extra fields.
        numbers: The 32-bit numbers, in the order of the zip64 field.

    Raises:
        DumpError: The zip64 field has fewer numbers than are needed.
    """
    missing = numbers.count(LIMIT_32)
    if not missing:
        return numbers
    content = fields.get(EXTRA_ZIP64, b"")
    if len(content) < 8 * missing:
        raise DumpError("its zip64 field is damaged")
    wide = iter(struct.unpack_from(f"<{missing}Q", content))
    return [next(wide) if number == LIMIT_32 else number for number in numbers]
