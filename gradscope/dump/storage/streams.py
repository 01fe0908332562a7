"""Streams: the bytes of a tensor from first to last, checked on the way."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

from gradscope.dump.storage.checksum import checksum
from gradscope.dump.storage.input_file import InputFile
from gradscope.errors import DumpError
from gradscope.protocols import implements

#: Compressed bytes read at a time, and bytes checksummed at a time, while they are in cache.
_STEP_BYTES: Final = 1 << 20


class ByteStream(Protocol):
    """Bytes that are read once, in order, into buffers of the reader's."""

    def fill(self, buffer: memoryview) -> None:
        """Fill a buffer with the next bytes.

        Raises:
            DumpError: There are not as many, or they are damaged.
        """
        ...

    def skip(self, size_bytes: int) -> None:
        """Pass over the next bytes; the CRC cannot be checked then.

        Raises:
            DumpError: There are not as many, or they are damaged.
        """
        ...

    def finish(self) -> None:
        """Check what can be checked only at the end: that nothing is left, and the CRC.

        Raises:
            DumpError: Something is left, or the bytes are not those that were written.
        """
        ...


class PlainStream:
    """Bytes as they lie in the file.

    Args:
        file: The file.
        offset: Where they start.
        size_bytes: How many there are.
        crc32: Their CRC-32; None where the file has none.
    """

    def __init__(self, file: InputFile, *, offset: int, size_bytes: int, crc32: int | None) -> None:
        self._file = file
        self._offset = offset
        self._end = offset + size_bytes
        self._expected = crc32
        self._crc32 = 0

    @implements(ByteStream)
    def fill(self, buffer: memoryview) -> None:
        if self._offset + len(buffer) > self._end:
            raise DumpError("its data ends too early")
        for start in range(0, len(buffer), _STEP_BYTES):
            piece = buffer[start : start + _STEP_BYTES]
            self._file.read_into(piece, self._offset)
            self._offset += len(piece)
            if self._expected is not None:
                self._crc32 = checksum(piece, self._crc32)

    @implements(ByteStream)
    def skip(self, size_bytes: int) -> None:
        self._offset += size_bytes
        if self._offset > self._end:
            raise DumpError("its data ends too early")

    @implements(ByteStream)
    def finish(self) -> None:
        if self._offset != self._end:
            raise DumpError(f"{self._end - self._offset} bytes follow its data")
        if self._expected is not None:
            require_crc(self._crc32, self._expected)


class InflatingStream:
    """Bytes that are deflated in the file.

    Args:
        file: The file.
        offset: Where the compressed bytes start.
        compressed_bytes: How many there are.
        crc32: CRC-32 of what they stand for.
    """

    def __init__(self, file: InputFile, *, offset: int, compressed_bytes: int, crc32: int) -> None:
        self._file = file
        self._offset = offset
        self._end = offset + compressed_bytes
        self._expected = crc32
        self._crc32 = 0
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._pending = b""

    @implements(ByteStream)
    def fill(self, buffer: memoryview) -> None:
        while buffer:
            piece = self._inflated(len(buffer))
            if not piece:
                raise DumpError("its compressed data ends too early")
            buffer[: len(piece)] = piece
            buffer = buffer[len(piece) :]
            self._crc32 = checksum(piece, self._crc32)

    @implements(ByteStream)
    def skip(self, size_bytes: int) -> None:
        room = memoryview(bytearray(min(size_bytes, _STEP_BYTES)))
        for start in range(0, size_bytes, _STEP_BYTES):
            self.fill(room[: size_bytes - start])

    @implements(ByteStream)
    def finish(self) -> None:
        left_over = self._inflated(1) or self._inflater.unused_data or self._offset != self._end
        if left_over or not self._inflater.eof:
            raise DumpError("its compressed data does not end where it should")
        require_crc(self._crc32, self._expected)

    def _inflated(self, limit: int) -> bytes:
        """Up to so many of the next bytes, at least one; b"" at the end."""
        while not self._inflater.eof:
            compressed = self._pending or self._next_compressed()
            piece = self._inflate(compressed, limit)
            # What has been taken in may be handed out only when asked again: the end is where neither is left.
            if piece or not compressed:
                return piece
        return b""

    def _inflate(self, compressed: bytes, limit: int) -> bytes:
        try:
            piece = self._inflater.decompress(compressed, min(limit, _STEP_BYTES))
        except zlib.error as error:
            raise DumpError(f"its compressed data is damaged: {error}") from error
        self._pending = self._inflater.unconsumed_tail
        return piece

    def _next_compressed(self) -> bytes:
        compressed = self._file.read(self._offset, min(_STEP_BYTES, self._end - self._offset))
        self._offset += len(compressed)
        return compressed


def require_crc(found: int, expected: int) -> None:
    """Refuse data that is not what was written.

    Raises:
        DumpError: It is not.
    """
    if found != expected:
        raise DumpError(f"its data is damaged: its CRC-32 is {found:08x}, written was {expected:08x}")
