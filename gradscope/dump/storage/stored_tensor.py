"""A tensor in a file: what is known of it before it is read, and reading it, whole or chunk by chunk."""

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

#: Bytes of a chunk, unless the reader asks for another size: what stays in a cache while it is checked and compared.
CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor whose elements lie in a file.

    Attributes:
        shape: Shape of the array in the file (of PRNG keys: one axis more than the keys have).
        logical: The logical dtype's name.
        stored: The dtype of the elements in the file.
        fortran: Whether the first axis varies fastest.
        header_bytes: Bytes of its stream before the first element.
        open_stream: Opens its bytes, header included; exactly as many as header and elements take.
    """

    shape: tuple[int, ...]
    logical: str
    stored: np.dtype[Any]
    fortran: bool
    header_bytes: int
    open_stream: Callable[[], ByteStream]

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements in the file."""
        return math.prod(self.shape) * self.stored.itemsize

    def array(self) -> Array:
        """The tensor, in its logical dtype.

        Raises:
            DumpError: The bytes are damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        stream = self._open()
        flat = self._room(math.prod(self.shape))
        stream.fill(flat.view(np.uint8).data)
        stream.finish()
        return decode(flat, self.logical).reshape(self.shape, order="F" if self.fortran else "C")

    def chunks(self, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        """The elements in C order, in one-dimensional arrays of the logical dtype.

        Memory is bounded by a chunk, save for a tensor whose first axis varies fastest, which is read whole.

        Args:
            chunk_bytes: Upper bound on the bytes that a chunk takes in the file, but for a single element.
            reused: As for `DumpSource.chunks`.

        Yields:
            Arrays of their own, unless `reused`; the last comes before the CRC is checked.

        Raises:
            DumpError: The bytes are damaged; the CRC is checked behind the last chunk.
            MachineError: The disk fails.
        """
        elements = max(1, chunk_bytes // self.stored.itemsize)
        if self.fortran:
            yield from blocks(self.array(), elements)
            return
        stream, size = self._open(), math.prod(self.shape)
        # What is freed goes back to the operating system, and comes back as pages that fault one by one.
        room = self._room(min(elements, size)) if reused else None
        for start in range(0, size, elements):
            count = min(elements, size - start)
            piece = self._room(count) if room is None else room[:count]
            stream.fill(piece.view(np.uint8).data)
            yield decode(piece, self.logical)
        stream.finish()

    def stretch(self, start: int, stop: int) -> Array:
        """The elements from `start` to before `stop` in C order, in an array of one dimension; the CRC is not checked.

        Memory is bounded as by `chunks`, to what is asked for.

        Raises:
            DumpError: The file is damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        if self.fortran:
            return stretch_of(self.array(), start, stop)
        stream, piece = self._open(), self._room(stop - start)
        stream.skip(start * self.stored.itemsize)
        stream.fill(piece.view(np.uint8).data)
        return decode(piece, self.logical)

    def check(self) -> None:
        """Read everything and keep nothing.

        Raises:
            DumpError: The bytes are damaged.
            MachineError: The disk fails.
        """
        stream = self._open()
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self.size_bytes)))
        for start in range(0, self.size_bytes, CHUNK_BYTES):
            stream.fill(buffer[: self.size_bytes - start])
        stream.finish()

    def _open(self) -> ByteStream:
        """The stream, its header read: the CRC covers it."""
        stream = self.open_stream()
        stream.fill(memoryview(bytearray(self.header_bytes)))
        return stream

    def _room(self, count: int) -> Array:
        """An array for so many elements."""
        try:
            return np.empty(count, self.stored)
        except MemoryError as error:
            raise MachineError(f"no memory for {count} elements of dtype {self.stored}") from error
