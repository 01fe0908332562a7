"""Joins the shards of a tensor, stored in the files of several processes, into one global array.

The shards have to form a grid, as those of every JAX sharding do: each axis is cut at the same indices everywhere. So a
missing or duplicate shard is found by counting, in time linear in the number of shards that an untrusted file claims.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array, blocks, stretch_of
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.dump.storage.stored_tensor import CHUNK_BYTES, StoredTensor
from gradscope.errors import DumpError, MachineError

#: Index of a shard's first element along each axis of the global array.
Start: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledTensor:
    """An `AssembledTensor` is a tensor whose elements are stored in several files.

    Attributes:
        shape: Global shape; the key data of PRNG keys has one axis more than the keys.
        logical: The logical dtype's name.
        shards: The shards by start index, in order; they tile the global array.
    """

    shape: tuple[int, ...]
    logical: str
    shards: Mapping[Start, StoredTensor]

    def array(self) -> Array:
        """Returns the global array in its logical dtype.

        Raises:
            DumpError: The bytes of a shard are damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        joined = self._empty(self.shape)
        for start, shard in self.shards.items():
            joined[_box(start, shard.shape)] = shard.array()
        return joined

    def chunks(self, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:  # noqa: ARG002
        """Yields the elements in C order, in one-dimensional arrays of the logical dtype.

        Memory is bounded by a chunk or by one index of the first axis, whichever is more.

        Args:
            chunk_bytes: Upper bound on the bytes of a chunk; a chunk has at least one element.
            reused: As for `DumpSource.chunks`; the yielded arrays are new in any case.

        Raises:
            DumpError: As for `array`, after the last chunk at the latest.
            MachineError: As for `array`.
        """
        itemsize = as_numpy_dtype(self.logical).itemsize
        rows = max(1, chunk_bytes // max(1, math.prod(self.shape[1:]) * itemsize))
        for _, band in itertools.groupby(self.shards.items(), lambda shard: shard[0][0]):
            for slab in self._slabs(dict(band), rows):
                yield from blocks(slab, max(1, chunk_bytes // itemsize))

    def stretch(self, start: int, stop: int) -> Array:
        """Returns the elements `start:stop` of the flattened tensor, in C order. All shards are read for that.

        Raises:
            DumpError: As for `array`.
            MachineError: As for `array`.
        """
        return stretch_of(self.array(), start, stop)

    def check(self) -> None:
        """Reads all bytes and checks their CRCs; returns nothing.

        Raises:
            DumpError: The bytes are damaged.
            MachineError: The disk fails.
        """
        for shard in self.shards.values():
            shard.check()

    def _slabs(self, band: Mapping[Start, StoredTensor], rows: int) -> Iterator[Array]:
        """Yields the joined rows of shards that start at the same first index, `rows` of them at a time."""
        widths = [math.prod(shard.shape[1:]) for shard in band.values()]
        streams = [
            shard.chunks(rows * width * shard.stored.itemsize, reused=True)
            for shard, width in zip(band.values(), widths, strict=True)
        ]  # fmt: skip
        for chunks in zip(*streams, strict=True):
            slab = self._empty((chunks[0].size // widths[0], *self.shape[1:]))
            for (start, shard), chunk in zip(band.items(), chunks, strict=True):
                shape = (len(slab), *shard.shape[1:])
                slab[_box((0, *start[1:]), shape)] = chunk.reshape(shape)
            yield slab

    def _empty(self, shape: tuple[int, ...]) -> Array:
        try:
            return np.empty(shape, as_numpy_dtype(self.logical))
        except MemoryError as error:
            raise MachineError(f"no memory for shape {shape} of dtype {self.logical}") from error


def assembled(
    shape: tuple[int, ...], logical: str, shards: Iterable[tuple[Start, StoredTensor]]
) -> StoredTensor | AssembledTensor:
    """Returns a reader of the global array that some shards make up.

    Args:
        shape: The global shape; of PRNG keys, without the axis of their data.
        logical: The logical dtype's name.
        shards: The start index of each shard, and its reader.

    Raises:
        DumpError: The shards overlap, do not cover the array, or have another dtype.
    """
    ordered = sorted(shards, key=lambda shard: shard[0])
    require_tiling(shape, [(start, shard.shape[: len(shape)]) for start, shard in ordered])
    if any(shard.logical != logical for _, shard in ordered):
        raise DumpError(f"a shard of it is not of dtype {logical}")
    if len(ordered) == 1:
        return ordered[0][1]
    keys_data = ordered[0][1].shape[len(shape) :]
    return AssembledTensor(shape=(*shape, *keys_data), logical=logical, shards=dict(ordered))


def require_tiling(shape: tuple[int, ...], boxes: Sequence[tuple[Start, tuple[int, ...]]]) -> None:
    """Raises an error where boxes do not cover each element of a shape exactly once.

    Args:
        shape: The shape to cover.
        boxes: The start index and the shape of each box.

    Raises:
        DumpError: Two boxes overlap, one is missing or exceeds the shape, or they do not form a grid.
    """
    for start, size in boxes:
        if len(start) != len(shape) or len(size) != len(shape):
            raise DumpError(f"its shard at {list(start)} has another number of axes than its shape {list(shape)}")
    cuts = [sorted({0, *(start[axis] for start, _ in boxes)}) for axis in range(len(shape))]
    ends = [dict(zip(cut, [*cut[1:], length], strict=True)) for cut, length in zip(cuts, shape, strict=True)]
    found = {start for start, _ in boxes}
    if len(found) != len(boxes):
        raise DumpError("two shards of it start at the same index")
    missing = next((start for start in itertools.product(*cuts) if start not in found), None)
    if missing is not None:
        raise DumpError(f"its shard at {list(missing)} is missing")
    for start, size in boxes:
        if any(at + length != end[at] for at, length, end in zip(start, size, ends, strict=True)):
            raise DumpError(f"its shard at {list(start)} of shape {list(size)} overlaps another or leaves a gap")


def _box(start: Start, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Returns the slices of the global array that a shard fills."""
    return tuple(slice(at, at + length) for at, length in zip(start, shape, strict=False))
