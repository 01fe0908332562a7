"""Computes the statistics of a tensor that is available chunk by chunk, and where its extremes are.

Chunks are what is read from a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradscope.arrays.digest import Digest
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.arrays.passes.single_pass import reduce_array
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Tier
from gradscope.naming import key_of
from gradscope.stats.tensor_stats import TensorStats


def stats_of_chunks(
    chunks: Iterable[np.ndarray[Any, Any]], *, shape: tuple[int, ...], dtype: str, tier: Tier = "full"
) -> TensorStats:
    """Returns the statistics of a tensor whose elements come in chunks.

    Args:
        chunks: The elements in C order, in contiguous arrays of the tensor's dtype.
        shape: The tensor's shape.
        dtype: The logical dtype's name.
        tier: As for `tensor_stats`.

    Returns:
        The same statistics, hash included, as `tensor_stats` returns for the full array.
    """
    digest = Digest()
    reduction = reduce_array(np.empty(0, as_numpy_dtype(dtype)), magnitudes=tier == "full")
    for chunk in chunks:
        reduction += reduce_array(chunk, magnitudes=tier == "full")
        digest.add(chunk)
    return TensorStats(
        shape=shape, dtype=dtype, reduction=reduction, hash=digest.hexadecimal() if tier == "full" else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A `Place` is that of an element in a tensor.

    Attributes:
        index: Its index along each axis.
        value: The element.
    """

    index: tuple[int, ...]
    value: float | complex

    @property
    def text(self) -> str:
        """The index, and the element behind it."""
        return f"{list(self.index)} ({self.value:.6g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtremePlaces:
    """`ExtremePlaces` are those of two elements of a tensor.

    Attributes:
        largest: The first finite element of the largest magnitude; None where none is finite.
        nonfinite: The first NaN or infinity; None where there is none.
    """

    largest: Place | None = None
    nonfinite: Place | None = None


def extreme_places(source: DumpSource, tensor: str) -> ExtremePlaces:
    """Returns where the largest element of a tensor is, and the first that is not finite; none without its elements.

    Args:
        source: The dump.
        tensor: The tensor's key, or its name where only one family has it.

    Raises:
        DumpError: The tensor is damaged.
        MachineError: The disk fails.
    """
    entries = {key_of(each.family, each.name): each for each in source.manifest.entries}
    named = [tensor] if tensor in entries else [key for key, each in entries.items() if each.name == tensor]
    entry = entries.get(entries[named[0]].alias_of or named[0]) if len(named) == 1 else None
    return ExtremePlaces() if entry is None or entry.stored is None else _places(source, entry)


def _places(source: DumpSource, entry: Entry) -> ExtremePlaces:
    largest, nonfinite, most, begin = None, None, -1.0, 0
    for chunk in source.chunks(key_of(entry.family, entry.name), reused=True):
        values = _wide(chunk.reshape(-1))
        finite = np.isfinite(values)
        if nonfinite is None and not finite.all():
            at = int(np.argmin(finite))
            nonfinite = _place(entry, begin + at, values[at])
        sizes = np.where(finite, np.abs(values), -1.0)
        at = int(np.argmax(sizes)) if sizes.size else 0
        if sizes.size and sizes[at] > most:
            most, largest = float(sizes[at]), _place(entry, begin + at, values[at])
        begin += values.size
    return ExtremePlaces(largest=largest, nonfinite=nonfinite)


def _wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values if values.dtype.kind == "c" else values.astype(np.float64)


def _place(entry: Entry, number: int, value: Any) -> Place:
    return Place(index=tuple(map(int, np.unravel_index(number, entry.shape))), value=value.item())
