"""Block pairs are matching blocks of two tensors, small enough for the processor's cache.

`block_pairs` yields them, `unequal_pairs` first skips pairs of equal tensors. `BlockBuffer` names the scratch buffers
that are in use at the same time while one block is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array, blocks


class BlockBuffer(Enum):
    """BlockBuffer names the buffers of `arrays.scratch` that hold intermediate results of one block."""

    REF = "the reference's block as float64"
    CAND = "the candidate's block as float64"
    DIFFERENCE = "candidate minus reference"
    MAGNITUDE = "the magnitudes of the reference"
    SMALL = "elements of the reference too small for a relative error"
    WORK = "the result of one step"
    MASK = "elements that one step selects"


#: A block of the reference and the block of the candidate at the same positions.
Pair: TypeAlias = tuple[Array, Array]

#: Starts to yield the elements of a tensor in C order, in chunks of any size.
Chunks: TypeAlias = Callable[[], Iterable[Array]]


def block_pairs(ref: Iterable[Array], cand: Iterable[Array]) -> Iterator[Pair]:
    """Yields blocks of equal size from two tensors, however each is chunked.

    Args:
        ref: The reference's elements in C order, in chunks of any size.
        cand: As many elements of the candidate.

    Yields:
        One-dimensional contiguous blocks.
    """
    # Both streams are read to their ends: there a file's checksum is verified.
    others = _block_stream(cand)
    other = next(others, None)
    for block in _block_stream(ref):
        one = block
        while one.size and other is not None:
            size = min(one.size, other.size)
            yield one[:size], other[:size]
            one, other = one[size:], other[size:] if other.size > size else next(others, None)


def unequal_pairs(ref: Chunks, cand: Chunks) -> Iterator[Pair] | None:
    """Returns the block pairs of two tensors of one size, or None where dtype and bytes are the same.

    Args:
        ref: Starts to yield the reference's elements; called once or twice.
        cand: Starts to yield the candidate's elements.
    """
    # Most pairs of a good comparison are equal, and comparing bytes runs at the speed of memory.
    pairs = block_pairs(ref(), cand())
    first = next(pairs, None)
    if first is None:
        return None
    # Where tensors differ by noise, already the first block differs, and nothing is read twice.
    if not same_bytes(*first):
        return chain([first], pairs)
    return None if all(same_bytes(*pair) for pair in pairs) else block_pairs(ref(), cand())


def pairs_of_few(ref: Array, cand: Array) -> Iterator[Pair] | None:
    """Returns what `unequal_pairs` does, of all elements of two small tensors."""
    if not ref.size or (ref.dtype == cand.dtype and ref.tobytes() == cand.tobytes()):
        return None
    return block_pairs([ref], [cand])


def same_bytes(ref: Array, cand: Array) -> bool:
    """Returns whether two blocks of one size have the same dtype and the same bytes."""
    if ref.dtype != cand.dtype:
        return False
    word = np.dtype(f"u{min(ref.dtype.itemsize, 8)}")
    return np.array_equal(ref.view(word), cand.view(word))


def _block_stream(chunks: Iterable[Array]) -> Iterator[Array]:
    for chunk in chunks:
        yield from blocks(chunk)
