"""Writes a zip file member by member, each array in one pass: every chunk is checksummed, then written to disk.

A member's header is first written with its size and a CRC of zero. The CRC is patched in after the data is written. So
after a kill, only the last member can be incomplete, and its CRC shows that (see `recover`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.dtypes import encode
from gradscope.dump.storage.checksum import checksum
from gradscope.dump.storage.writing.partial_file import PartialFile
from gradscope.dump.zip.structures import CRC_OFFSET, WrittenMember, directory_record, end_records, local_header

#: Bytes per chunk; small enough that a chunk is still in the cache when it is written after its checksum.
CHUNK_BYTES: Final = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A `Payload` is the content of a member: some bytes, and then the elements of an array in their stored dtype."""

    head: bytes
    array: Array

    def chunks(self) -> Iterator[memoryview]:
        """Yields the payload's bytes; at most one chunk of them is copied at a time."""
        yield memoryview(self.head)
        for block in blocks(self.array, max(1, CHUNK_BYTES // self.array.itemsize)):
            # Block by block, because `encode` copies an integer array of less than a byte per element.
            yield encode(block).view(np.uint8).data


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenData:
    """`WrittenData` has the CRC-32 of a member's written data, and the file offset of its first byte."""

    crc32: int
    offset: int


class ZipWriter:
    """A `ZipWriter` writes members one after the other, and the directory behind them.

    Args:
        file: The file that is written. After a failed member, it may be longer than the members it contains.
    """

    def __init__(self, file: PartialFile) -> None:
        self._file = file
        self._position = 0
        self._members: list[WrittenMember] = []

    def add(self, name: str, payload: Payload, size_bytes: int, *, facts: bytes = b"") -> WrittenData:
        """Writes a member.

        Args:
            name: The member's name, which is not in use yet.
            payload: The content.
            size_bytes: Bytes of the content.
            facts: JSON text for the extra field; b"" for none.

        Returns:
            The CRC-32 and the offset of the data.

        Raises:
            MachineError: The disk is full or fails; the member is then not part of the file.
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
        return WrittenData(crc32=crc32, offset=offset)

    def finish(self) -> int:
        """Writes the directory behind the members.

        Returns:
            Bytes of the complete file.

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
