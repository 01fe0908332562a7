"""Streams read the bytes of one tensor in order and check their CRC-32 at the end.

The CRC is computed while bytes are read, and compared in `finish` (`require_crc`).
"""

from __future__ import annotations

import zlib
from typing import Final, Protocol

from gradscope.dump.storage.checksum import checksum
from gradscope.dump.storage.input_file import InputFile
from gradscope.errors import DumpError
from gradscope.protocols import implements

#: Compressed bytes read at a time, and bytes checksummed at a time, while they are in cache.
_STEP_BYTES: Final = 1 << 20

#: The most bytes that are read with what is behind them.
_FEW_BYTES: Final = 1 << 10


class ByteStream(Protocol):
    """A `ByteStream` has bytes that are read once, in order, into the caller's buffers."""

    def fill(self, buffer: memoryview) -> None:
        """Fills a buffer with the next bytes.

        Raises:
            DumpError: The stream has fewer bytes, or they are damaged.
        """
        ...

    def read_all(self, size_bytes: int) -> bytearray:
        """Returns all bytes of a stream that has so many, none of which has been read; does what `finish` does.

        Raises:
            DumpError: The stream has more or fewer bytes, or they are damaged.
        """
        ...

    def skip(self, size_bytes: int) -> None:
        """Skips the next bytes; the CRC cannot be checked after that.

        Raises:
            DumpError: The stream has fewer bytes, or they are damaged.
        """
        ...

    def finish(self) -> None:
        """Checks that no bytes are left, and that the CRC of the bytes read is the stored one.

        Raises:
            DumpError: Bytes are left, or the CRC differs.
        """
        ...


class PlainStream:
    """A `PlainStream` has uncompressed bytes of a file.

    Args:
        file: The file.
        offset: File offset of the first byte.
        size_bytes: Number of bytes.
        crc32: Their expected CRC-32; None where the file stores none.
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
            chunk = buffer[start : start + _STEP_BYTES] if len(buffer) > _STEP_BYTES else buffer
            if len(chunk) <= _FEW_BYTES:  # as those of most tensors that are compared or read one after the other
                chunk[:] = self._file.near(self._offset, len(chunk))
            else:
                self._file.read_into(chunk, self._offset)
            self._offset += len(chunk)
            if self._expected is not None:
                self._crc32 = checksum(chunk, self._crc32)

    @implements(ByteStream)
    def read_all(self, size_bytes: int) -> bytearray:
        if size_bytes > _FEW_BYTES or size_bytes != self._end - self._offset:
            return _filled(self, size_bytes)
        found = bytearray(self._file.near(self._offset, size_bytes))
        if self._expected is not None:
            require_crc(checksum(found), self._expected)
        return found

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
    """An `InflatingStream` inflates bytes that are stored deflated (zlib-compressed) in a file.

    Args:
        file: The file.
        offset: File offset of the first compressed byte.
        compressed_bytes: Number of compressed bytes.
        crc32: Expected CRC-32 of the decompressed bytes.
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
            chunk = self._inflated(len(buffer))
            if not chunk:
                raise DumpError("its compressed data ends too early")
            buffer[: len(chunk)] = chunk
            buffer = buffer[len(chunk) :]
            self._crc32 = checksum(chunk, self._crc32)

    @implements(ByteStream)
    def read_all(self, size_bytes: int) -> bytearray:
        return _filled(self, size_bytes)

    @implements(ByteStream)
    def skip(self, size_bytes: int) -> None:
        discarded = memoryview(bytearray(min(size_bytes, _STEP_BYTES)))
        for start in range(0, size_bytes, _STEP_BYTES):
            self.fill(discarded[: size_bytes - start])

    @implements(ByteStream)
    def finish(self) -> None:
        left_over = self._inflated(1) or self._inflater.unused_data or self._offset != self._end
        if left_over or not self._inflater.eof:
            raise DumpError("its compressed data does not end where it should")
        require_crc(self._crc32, self._expected)

    def _inflated(self, limit: int) -> bytes:
        """Returns at least one and at most `limit` of the next decompressed bytes; b"" at the end."""
        while not self._inflater.eof:
            compressed = self._pending or self._next_compressed()
            chunk = self._inflate(compressed, limit)
            # The inflater buffers bytes. It is only at the end when it has neither input nor output left.
            if chunk or not compressed:
                return chunk
        return b""

    def _inflate(self, compressed: bytes, limit: int) -> bytes:
        try:
            chunk = self._inflater.decompress(compressed, min(limit, _STEP_BYTES))
        except zlib.error as error:
            raise DumpError(f"its compressed data is damaged: {error}") from error
        self._pending = self._inflater.unconsumed_tail
        return chunk

    def _next_compressed(self) -> bytes:
        compressed = self._file.read(self._offset, min(_STEP_BYTES, self._end - self._offset))
        self._offset += len(compressed)
        return compressed


def _filled(stream: ByteStream, size_bytes: int) -> bytearray:
    found = bytearray(size_bytes)
    stream.fill(memoryview(found))
    stream.finish()
    return found


def require_crc(found: int, expected: int) -> None:
    """Raises an error where the CRC-32 of the bytes read is not the expected one.

    Raises:
        DumpError: The two differ.
    """
    if found != expected:
        raise DumpError(f"its data is damaged: its CRC-32 is {found:08x}, expected {expected:08x}")
