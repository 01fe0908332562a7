"""Writing a zip file member by member, each array in one pass over its bytes: checksum, then disk, chunk by chunk.

A member's header is written with its size, which is known, and a CRC of zero; the CRC is patched in when the data is
there. So a member cut off by a kill is known by its CRC, and every member before it is whole (see `recover`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.dtypes import encode
from gradscope.dump.storage.checksum import checksum
from gradscope.dump.storage.partial_file import PartialFile
from gradscope.dump.zip.structures import CRC_OFFSET, WrittenMember, directory_record, end_records, local_header

#: Bytes per step: what is checksummed is still in cache when it is written.
CHUNK_BYTES: Final = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What a member holds: some bytes, and then the elements of an array as they are stored."""

    head: bytes
    array: Array

    def chunks(self) -> Iterator[memoryview]:
        """The payload's bytes; no more than a chunk's worth of them is ever a copy."""
        yield memoryview(self.head)
        for block in blocks(self.array, max(1, CHUNK_BYTES // self.array.itemsize)):
            # `encode` copies what is widened, so it is given no more than a block.
            yield encode(block).view(np.uint8).data


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a member's data has been put: its CRC-32, and the file offset of its first byte."""

    crc32: int
    offset: int


class ZipWriter:
    """Writes members one after the other, and the directory behind them.

    Args:
        file: Receives the bytes; it may grow beyond what is finished when a member fails.
    """

    def __init__(self, file: PartialFile) -> None:
        self._file = file
        self._position = 0
        self._members: list[WrittenMember] = []

    def add(self, name: str, payload: Payload, size_bytes: int, *, facts: bytes = b"") -> Placed:
        """Write a member.

        Args:
            name: Its name, not used before.
            payload: Its content.
            size_bytes: Bytes of the content.
            facts: JSON text for our extra field.

        Returns:
            Where it is.

        Raises:
            MachineError: The disk is full or fails; the member is not part of the file.
        """
        member = WrittenMember(
            name=name.encode(), crc32=0, size_bytes=size_bytes, header_offset=self._position, facts=facts
        )
        header = local_header(member)
        self._file.write(memoryview(header), self._position)
        offset = self._position + len(header)
        crc32 = self._write_payload(payload, offset)
        self._file.write(memoryview(crc32.to_bytes(4, "little")), self._position + CRC_OFFSET)
        self._members.append(replace(member, crc32=crc32))
        self._position = offset + size_bytes
        return Placed(crc32=crc32, offset=offset)

    def finish(self) -> int:
        """Write the directory behind the members.

        Returns:
            Bytes of the whole file.

        Raises:
            MachineError: The disk is full or fails.
        """
        directory = b"".join(map(directory_record, self._members))
        end = end_records(members=len(self._members), directory_offset=self._position, directory_bytes=len(directory))
        self._file.write(memoryview(directory + end), self._position)
        return self._position + len(directory) + len(end)

    def _write_payload(self, payload: Payload, offset: int) -> int:
        crc32 = 0
        for chunk in payload.chunks():
            crc32 = checksum(chunk, crc32)
            self._file.write(chunk, offset)
            offset += len(chunk)
        return crc32
