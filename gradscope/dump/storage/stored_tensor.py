"""Reads one tensor of a file: the full array, a range of its elements, or chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array, blocks, stretch_of
from gradscope.arrays.dtypes import decode
from gradscope.dump.storage.streams import ByteStream
from gradscope.errors import MachineError

#: Default bytes of a chunk: it stays in the cache while it is checksummed and compared.
CHUNK_BYTES: Final = 1 << 20

#: The most bytes of a tensor that is read at once with its header.
_SMALL_BYTES: Final = 1 << 16


@dataclass(slots=True, kw_only=True)  # not frozen, because that takes three times as long
class StoredTensor:
    """A `StoredTensor` is a tensor whose elements are stored in a file.

    Attributes:
        shape: Shape of the array in the file; the key data of PRNG keys has one axis more than the keys.
        logical: The logical dtype's name.
        stored: The dtype of the elements in the file.
        fortran: Whether the first axis varies fastest.
        header_bytes: Bytes of the stream before the first element.
        open_stream: Opens a stream of exactly the header's and the elements' bytes.
    """

    shape: tuple[int, ...]
    logical: str
    stored: np.dtype[Any]
    fortran: bool
    header_bytes: int
    open_stream: Callable[[], ByteStream]

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements in the file."""
        return math.prod(self.shape) * self.stored.itemsize

    def array(self) -> Array:
        """Returns the full tensor in its logical dtype.

        Raises:
            DumpError: The bytes are damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        flat = self._elements()
        return decode(flat, self.logical).reshape(self.shape, order="F" if self.fortran else "C")

    def chunks(self, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        """Yields the elements in C order, in one-dimensional arrays of the logical dtype.

        Memory is bounded by a chunk, except for a tensor in Fortran order, which is read into memory completely.

        Args:
            chunk_bytes: Upper bound on the bytes that a chunk takes in the file; a chunk has at least one element.
            reused: As for `DumpSource.chunks`.

        Yields:
            New arrays, or with `reused` arrays of one shared buffer. The CRC is checked after the last one.

        Raises:
            DumpError: The bytes are damaged; a wrong CRC is reported after the last chunk.
            MachineError: The disk fails.
        """
        elements = max(1, chunk_bytes // self.stored.itemsize)
        if not self.fortran and 0 < self.size_bytes <= min(chunk_bytes, _SMALL_BYTES):
            yield decode(self._elements(), self.logical)
            return
        if self.fortran:
            yield from blocks(self.array(), elements)
            return
        stream, size = self._open(), math.prod(self.shape)
        # One buffer for all chunks: freed memory returns to the operating system, and new pages fault one by one.
        buffer = self._allocated(min(elements, size)) if reused else None
        for start in range(0, size, elements):
            count = min(elements, size - start)
            chunk = self._allocated(count) if buffer is None else buffer[:count]
            stream.fill(chunk.view(np.uint8).data)
            yield decode(chunk, self.logical)
        stream.finish()

    def stretch(self, start: int, stop: int) -> Array:
        """Returns the elements `start:stop` of the flattened tensor, in C order; the CRC is not checked.

        Memory is bounded by the returned elements, except for a tensor in Fortran order.

        Raises:
            DumpError: The file is damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        if self.fortran:
            return stretch_of(self.array(), start, stop)
        stream, elements = self._open(), self._allocated(stop - start)
        stream.skip(start * self.stored.itemsize)
        stream.fill(elements.view(np.uint8).data)
        return decode(elements, self.logical)

    def check(self) -> None:
        """Reads all bytes and checks their CRC; returns nothing.

        Raises:
            DumpError: The bytes are damaged.
            MachineError: The disk fails.
        """
        stream = self._open()
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self.size_bytes)))
        for start in range(0, self.size_bytes, CHUNK_BYTES):
            stream.fill(buffer[: self.size_bytes - start])
        stream.finish()

    def _elements(self) -> Array:
        """Returns all elements in the order of the file, after checking their CRC."""
        stream, size_bytes = self.open_stream(), self.size_bytes
        if size_bytes > _SMALL_BYTES:
            flat = self._allocated(math.prod(self.shape))
            # The header is read and not skipped, because the CRC covers it.
            stream.fill(memoryview(bytearray(self.header_bytes)))
            stream.fill(flat.view(np.uint8).data)
            stream.finish()
            return flat
        # One read of a small tensor takes half as long as one of its header and one of its elements.
        both = stream.read_all(self.header_bytes + size_bytes)
        return np.frombuffer(both, self.stored, offset=self.header_bytes) if size_bytes else np.empty(0, self.stored)

    def _open(self) -> ByteStream:
        """Returns the stream, positioned at the first element."""
        stream = self.open_stream()
        # The header is read and not skipped, because the CRC covers it.
        stream.fill(memoryview(bytearray(self.header_bytes)))
        return stream

    def _allocated(self, count: int) -> Array:
        """Returns an uninitialised array of `count` elements."""
        try:
            return np.empty(count, self.stored)
        except MemoryError as error:
            raise MachineError(f"no memory for {count} elements of dtype {self.stored}") from error
