"""Value histograms count the finite elements of a tensor by sign and size, in bins that are the same for every tensor.

Bins have numbers from -510 to 510. Bin 0 counts zeros. Bin k > 0 counts the numbers from `E(k - 1)` on and below
`E(k)`, bin -k their negatives, where `E(m)` is the float32 whose bits are those of the integer m * 2^22: two bins for
each octave, `2^e` to `1.5 * 2^e` to `2^(e + 1)`. `E(0)` is 0 and `E(510)` is 2^128. A tensor of another dtype is
counted as float32, where a number that is too large or too small for it is in the last or first bin of its sign.

As a blob a histogram has two little-endian 32-bit integers for each bin that is not empty, in order: its number, and
the count, unsigned; a count that is larger than it can be is stored as the largest.

Why fixed bins (2026-11): those of two steps, or of two tensors, compare without arithmetic, and they cost no pass over
the tensor to find its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.errors import DumpError

#: The bins of one sign: those of the float32 without its infinities, by the eight bits of the exponent and one more.
BINS_PER_SIGN: Final = 510
#: All bins, zeros between both signs.
BINS: Final = 2 * BINS_PER_SIGN + 1
#: Bits of a float32 that do not matter for its bin.
SHIFT: Final = 22

_BLOB: Final = np.dtype([("bin", "<i4"), ("count", "<u4")])
_MOST: Final = 2**32 - 1
_LARGEST: Final = float(np.finfo(np.float32).max)
_SMALLEST: Final = float(np.finfo(np.float32).smallest_subnormal)
_NEGATIVE: Final = 512
#: Elements that are counted at a time, so that what is made of them stays in the cache.
_BLOCK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ValueHistogram:
    """A `ValueHistogram` has the number of elements in each bin that has any, in the order of their values.

    Attributes:
        bins: The numbers of the bins.
        counts: Elements per bin.
    """

    bins: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, counts: np.ndarray) -> ValueHistogram:
        """Returns the histogram of the counts of all bins, [BINS]."""
        (occupied,) = counts.nonzero()
        return cls(tuple((occupied - BINS_PER_SIGN).tolist()), tuple(counts[occupied].tolist()))

    @property
    def lower(self) -> np.ndarray:
        """The lower edge of each bin, [bins]; of the bin of zeros, 0."""
        numbers = np.array(self.bins, np.int64)
        return np.where(numbers > 0, _edge(numbers - 1), -_edge(-numbers) + 0.0)

    @property
    def upper(self) -> np.ndarray:
        """The upper edge of each bin, [bins]; of the bin of zeros, 0."""
        numbers = np.array(self.bins, np.int64)
        return np.where(numbers < 0, -_edge(-numbers - 1) + 0.0, _edge(numbers))

    @property
    def total(self) -> int:
        """Number of counted elements: the finite ones."""
        return sum(self.counts)

    def octaves(self) -> list[tuple[int, int]]:
        """Returns pairs of an exponent `e` and the number of magnitudes in `[2^e, 2^(e+1))`, in order, without gaps.

        Zeros are in none of them; what is smaller than `2^-126` is in that of -127.
        """
        counts: dict[int, int] = {}
        for number, count in zip(self.bins, self.counts, strict=True):
            exponent = (abs(number) - 1) // 2 - 127
            if number:
                counts[exponent] = counts.get(exponent, 0) + count
        return [(each, counts.get(each, 0)) for each in range(min(counts), max(counts) + 1)] if counts else []

    def to_bytes(self) -> bytes:
        """Returns the blob."""
        made = np.empty(len(self.bins), _BLOB)
        made["bin"], made["count"] = self.bins, np.minimum(np.array(self.counts, np.int64), _MOST)
        return made.tobytes()

    @classmethod
    def from_bytes(cls, blob: bytes) -> ValueHistogram:
        """Returns the histogram of a blob that anybody may have written.

        Raises:
            DumpError: It is not one.
        """
        if len(blob) % _BLOB.itemsize:
            raise DumpError("a histogram has not as many bytes as it needs")
        found = np.frombuffer(blob, _BLOB)
        bins, counts = found["bin"], found["count"]
        ordered = bool((np.diff(bins.astype(np.int64)) > 0).all() and (counts > 0).all())
        if not ordered or (len(bins) and max(-int(bins[0]), int(bins[-1])) > BINS_PER_SIGN):
            raise DumpError("a histogram has bins or counts that there are not")
        return cls(tuple(bins.tolist()), tuple(counts.tolist()))


def counted(values: np.ndarray) -> np.ndarray:
    """Returns the counts of all bins, [BINS], of an array of any floating-point dtype."""
    flat = values.reshape(-1)
    found, zeros = np.zeros(2 * _NEGATIVE, np.int64), 0
    for start in range(0, flat.size, _BLOCK):
        bits = _as_float32(flat[start : start + _BLOCK]).view(np.uint32)
        found += np.bincount(bits >> SHIFT, minlength=2 * _NEGATIVE)
        for at, zero in ((0, 0), (_NEGATIVE, 1 << 31)):
            number = int(np.count_nonzero(bits == zero))
            found[at] -= number
            zeros += number
    negative = found[_NEGATIVE : _NEGATIVE + BINS_PER_SIGN][::-1]
    return np.concatenate([negative, [zeros], found[:BINS_PER_SIGN]])


def _as_float32(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.float32:
        return np.ascontiguousarray(values)
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32)
    if values.dtype.itemsize > narrow.dtype.itemsize:
        narrow[np.isinf(narrow) & np.isfinite(values)] = _LARGEST
        narrow[(narrow == 0) & (values != 0)] = _SMALLEST
        narrow = np.where(np.signbit(values), -np.abs(narrow), np.abs(narrow))
    return narrow


def _edge(numbers: np.ndarray) -> np.ndarray:
    inside = np.clip(numbers, 0, BINS_PER_SIGN - 1).astype(np.uint32) << SHIFT
    return np.where(numbers >= BINS_PER_SIGN, math.ldexp(1.0, 128), inside.view(np.float32).astype(np.float64))
