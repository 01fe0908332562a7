"""`WholeArrays` is the part of a dump that follows from its arrays, where each is had at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from gradscope.arrays.blocks import Array, blocks, stretch_of
from gradscope.dump.interfaces import DumpSource, EntryIndex
from gradscope.dump.storage.stored_tensor import CHUNK_BYTES
from gradscope.protocols import implements


class WholeArrays(EntryIndex, ABC):
    """`WholeArrays` yields chunks and stretches of tensors that are had as a whole. Dumps are derived from it."""

    @abstractmethod
    def array(self, key: str) -> Array:
        """Returns a tensor, as `DumpSource` states it."""

    @implements(DumpSource)
    def chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:  # noqa: ARG002
        array = self.array(key)
        return blocks(array, max(1, chunk_bytes // array.itemsize))

    @implements(DumpSource)
    def stretch(self, key: str, start: int, stop: int) -> Array:
        return stretch_of(self.array(key), start, stop)
