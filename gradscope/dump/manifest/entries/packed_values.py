"""Columns of texts and of histograms, which take a fraction of what objects take."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradscope.dump.manifest.json_fields import LARGEST
from gradscope.dump.record import Json

#: The statistic that is a histogram: an object with the number of its first bin, and the counts from there.
HISTOGRAM: Final = "histogram"
_FIELDS: Final = ("first", "counts")

#: The bytes of a histogram, but for its counts.
_HISTOGRAM_BYTES: Final = 16


class EqualTexts:
    """`EqualTexts` are texts of ASCII of one length, such as hashes, in one buffer.

    Args:
        length: The length.
    """

    __slots__ = ("_buffer", "_length")

    def __init__(self, length: int) -> None:
        self._length = length
        self._buffer = bytearray()

    @classmethod
    def of(cls, texts: Sequence[str]) -> EqualTexts | None:
        """Returns some texts; None where they are not of one length, or not of ASCII."""
        found = cls(len(texts[0]))
        return found if found.extend(texts) else None

    def extend(self, texts: Sequence[str]) -> bool:
        """Adds some texts, and returns true; or adds none, where one has another length, or is not of ASCII."""
        joined = "".join(texts)
        if not joined.isascii() or {*map(len, texts)} != {self._length}:
            return False
        self._buffer += joined.encode()
        return True

    def __getitem__(self, index: int) -> str:
        start = index * self._length
        return self._buffer[start : start + self._length].decode()

    def __len__(self) -> int:
        return len(self._buffer) // self._length

    def tolist(self) -> list[Any]:
        """Returns the texts as a list."""
        text, length = self._buffer.decode(), self._length
        return [text[start : start + length] for start in range(0, len(text), length)]


class Histograms:
    """`Histograms` are those of tensors, with the counts in arrays of as few bits as these need.

    What is no histogram stays as it is.

    Attributes:
        odd: What is no histogram, by its position.
    """

    __slots__ = ("_blocks", "_ends", "_firsts", "_rows", "odd")

    def __init__(self) -> None:
        self.odd: dict[int, Json] = {}
        self._firsts = array("q")
        self._ends = array("q")  # of the counts of each histogram in its block
        self._blocks: list[npt.NDArray[np.unsignedinteger[Any]]] = []
        self._rows: list[int] = []  # at which each block begins

    def extend(self, values: Sequence[Json], spend: Callable[[int], object]) -> list[Json]:
        """Adds some values; returns those that are no histograms.

        Args:
            values: The values.
            spend: Is called with the number of bytes that the histograms take.
        """
        start = len(self)
        found = [_as_histogram(each) for each in values]
        wide = _packed([*chain.from_iterable(counts for _, counts in found)])
        odd = {start + row: each for row, each in enumerate(values) if found[row] is _ODD}
        if wide is None:  # a count is none
            found, wide, odd = [_ODD] * len(values), np.zeros(0, np.uint64), dict(enumerate(values, start))
        block = wide.astype(np.min_scalar_type(wide.max(initial=np.uint64(0))))
        spend(block.nbytes + _HISTOGRAM_BYTES * len(values))
        self._rows.append(start)
        self._blocks.append(block)
        self._firsts.extend(first for first, _ in found)
        self._ends.extend(accumulate(len(counts) for _, counts in found))
        self.odd |= odd
        return [*odd.values()]

    def __getitem__(self, index: int) -> Json:
        if index in self.odd:
            return self.odd[index]
        number = bisect_right(self._rows, index) - 1
        start = 0 if index == self._rows[number] else self._ends[index - 1]
        return {"first": self._firsts[index], "counts": self._blocks[number][start : self._ends[index]].tolist()}

    def __len__(self) -> int:
        return len(self._firsts)


#: Stands for what is no histogram.
_ODD: Final[tuple[int, list[Json]]] = (0, [])


def _as_histogram(value: Json) -> tuple[int, list[Json]]:
    """Returns the first bin and the counts of a histogram."""
    if not isinstance(value, dict) or tuple(value) != _FIELDS:
        return _ODD
    first, counts = value["first"], value["counts"]
    return (first, counts) if type(first) is int and 0 <= first <= LARGEST and isinstance(counts, list) else _ODD


def _packed(counts: Sequence[Any]) -> npt.NDArray[np.uint64] | None:
    """Returns counts as an array; None where one is none."""
    if {*map(type, counts)} - {int}:
        return None
    try:
        return np.frombuffer(struct.pack(f"{len(counts)}Q", *counts), np.uint64)
    except struct.error:  # below zero, or of more bits
        return None
