"""A tensor in parts: the shards of several processes, found to tile the whole, and reading them as one.

The parts have to form a grid, as those of every JAX sharding do: each axis is cut at the same places all the way
through. So whether anything is missing or twice is a matter of counting, however many parts a stranger claims.
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

#: Index of a part's first element along each axis.
Start: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledTensor:
    """A tensor whose elements lie in several files.

    Attributes:
        shape: Shape of the whole array (of PRNG keys: one axis more than the keys have).
        logical: The logical dtype's name.
        parts: Its parts by where they begin, in order; they tile the whole.
    """

    shape: tuple[int, ...]
    logical: str
    parts: Mapping[Start, StoredTensor]

    def array(self) -> Array:
        """The tensor, in its logical dtype.

        Raises:
            DumpError: The bytes of a part are damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        whole = self._empty(self.shape)
        for start, part in self.parts.items():
            whole[_box(start, part.shape)] = part.array()
        return whole

    def chunks(self, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:  # noqa: ARG002
        """The elements in C order, in one-dimensional arrays of the logical dtype.

        Memory is bounded by a chunk or by one index of the first axis, whichever is more.

        Args:
            chunk_bytes: Upper bound on the bytes of a chunk, but for a single element.
            reused: As for `DumpSource.chunks`; what is put together is new in any case.

        Raises:
            DumpError: As for `array`, at the latest behind the last chunk.
            MachineError: As for `array`.
        """
        itemsize = as_numpy_dtype(self.logical).itemsize
        rows = max(1, chunk_bytes // max(1, math.prod(self.shape[1:]) * itemsize))
        for _, band in itertools.groupby(self.parts.items(), lambda part: part[0][0]):
            for slab in self._slabs(dict(band), rows):
                yield from blocks(slab, max(1, chunk_bytes // itemsize))

    def stretch(self, start: int, stop: int) -> Array:
        """The elements from `start` to before `stop` in C order; the whole is put together for it.

        Raises:
            DumpError: As for `array`.
            MachineError: As for `array`.
        """
        return stretch_of(self.array(), start, stop)

    def check(self) -> None:
        """Read everything and keep nothing.

        Raises:
            DumpError: The bytes are damaged.
            MachineError: The disk fails.
        """
        for part in self.parts.values():
            part.check()

    def _slabs(self, band: Mapping[Start, StoredTensor], rows: int) -> Iterator[Array]:
        """Parts that lie side by side, so many indices of the first axis at a time."""
        widths = [math.prod(part.shape[1:]) for part in band.values()]
        pieces = [
            part.chunks(rows * width * part.stored.itemsize, reused=True)
            for part, width in zip(band.values(), widths, strict=True)
        ]  # fmt: skip
        for found in zip(*pieces, strict=True):
            slab = self._empty((found[0].size // widths[0], *self.shape[1:]))
            for (start, part), piece in zip(band.items(), found, strict=True):
                shape = (len(slab), *part.shape[1:])
                slab[_box((0, *start[1:]), shape)] = piece.reshape(shape)
            yield slab

    def _empty(self, shape: tuple[int, ...]) -> Array:
        try:
            return np.empty(shape, as_numpy_dtype(self.logical))
        except MemoryError as error:
            raise MachineError(f"no memory for shape {shape} of dtype {self.logical}") from error


def assembled(
    shape: tuple[int, ...], logical: str, parts: Iterable[tuple[Start, StoredTensor]]
) -> StoredTensor | AssembledTensor:
    """A whole tensor of its parts.

    Args:
        shape: Its shape (of PRNG keys: without the axis of their data).
        logical: The logical dtype's name.
        parts: Where each part begins, and how to read it.

    Raises:
        DumpError: The parts overlap, leave something out, or are of another dtype.
    """
    ordered = sorted(parts, key=lambda part: part[0])
    require_tiling(shape, [(start, part.shape[: len(shape)]) for start, part in ordered])
    if any(part.logical != logical for _, part in ordered):
        raise DumpError(f"a part of it is not of dtype {logical}")
    if len(ordered) == 1:
        return ordered[0][1]
    keys_data = ordered[0][1].shape[len(shape) :]
    return AssembledTensor(shape=(*shape, *keys_data), logical=logical, parts=dict(ordered))


def require_tiling(shape: tuple[int, ...], boxes: Sequence[tuple[Start, tuple[int, ...]]]) -> None:
    """Refuse boxes that do not make up a whole, each element once.

    Args:
        shape: Shape of the whole.
        boxes: Where each begins, and its shape.

    Raises:
        DumpError: Two overlap, one is missing or sticks out, or they form no grid.
    """
    for start, size in boxes:
        if len(start) != len(shape) or len(size) != len(shape):
            raise DumpError(f"its part at {list(start)} has another number of axes than its shape {list(shape)}")
    cuts = [sorted({0, *(start[axis] for start, _ in boxes)}) for axis in range(len(shape))]
    ends = [dict(zip(cut, [*cut[1:], length], strict=True)) for cut, length in zip(cuts, shape, strict=True)]
    found = {start for start, _ in boxes}
    if len(found) != len(boxes):
        raise DumpError("two parts of it begin at the same place")
    missing = next((start for start in itertools.product(*cuts) if start not in found), None)
    if missing is not None:
        raise DumpError(f"its part at {list(missing)} is missing")
    for start, size in boxes:
        if any(at + length != end[at] for at, length, end in zip(start, size, ends, strict=True)):
            raise DumpError(f"its part at {list(start)} of shape {list(size)} overlaps another or leaves a gap")


def _box(start: Start, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Where in the whole a part lies."""
    return tuple(slice(at, at + length) for at, length in zip(start, shape, strict=False))
