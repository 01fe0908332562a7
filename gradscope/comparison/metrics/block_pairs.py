"""Block pairs: the elements of two tensors side by side, a cache's worth at a time.

The intermediate results of comparing one block that are alive at the same time, for `arrays.scratch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array, blocks


class Slot(Enum):
    """One buffer each."""

    REF = "the reference's block as float64"
    CAND = "the candidate's block as float64"
    DIFFERENCE = "candidate minus reference"
    MAGNITUDE = "the magnitudes of the reference"
    SMALL = "elements of the reference too small for a relation"
    WORK = "a step's own result"
    MASK = "elements of which a step asks a question"


#: A block of the reference and the block of the candidate in the same place.
Pair: TypeAlias = tuple[Array, Array]

#: Begins to give the elements of a tensor in C order, in pieces of any size.
Chunks: TypeAlias = Callable[[], Iterable[Array]]


def block_pairs(ref: Iterable[Array], cand: Iterable[Array]) -> Iterator[Pair]:
    """Blocks of one size from both sides, however each side is cut.

    Both sides are drawn to their ends, where a file's checksum is checked.

    Args:
        ref: The reference's elements in C order, in pieces of any size.
        cand: As many elements of the candidate.

    Yields:
        One-dimensional contiguous blocks.
    """
    others = _block_stream(cand)
    other = next(others, None)
    for block in _block_stream(ref):
        one = block
        while one.size and other is not None:
            size = min(one.size, other.size)
            yield one[:size], other[:size]
            one, other = one[size:], other[size:] if other.size > size else next(others, None)


def unequal_pairs(ref: Chunks, cand: Chunks) -> Iterator[Pair] | None:
    """The block pairs of two tensors of one size, from their beginning, or nothing to look at.

    Equal tensors are the rule in a good comparison, and are settled by their bytes at the speed of memory.

    Args:
        ref: Begins to give the reference's elements; called once or twice.
        cand: Begins to give the candidate's.

    Returns:
        The pairs; None where dtype and bytes are the same.
    """
    pairs = block_pairs(ref(), cand())
    first = next(pairs, None)
    if first is None:
        return None
    # Where everything differs by noise the first block does, and nothing need be read twice.
    if not same_bytes(*first):
        return chain([first], pairs)
    return None if all(same_bytes(*pair) for pair in pairs) else block_pairs(ref(), cand())


def same_bytes(ref: Array, cand: Array) -> bool:
    """Whether two blocks of one size have the same dtype and the same bytes."""
    if ref.dtype != cand.dtype:
        return False
    word = np.dtype(f"u{min(ref.dtype.itemsize, 8)}")
    return np.array_equal(ref.view(word), cand.view(word))


def _block_stream(chunks: Iterable[Array]) -> Iterator[Array]:
    for chunk in chunks:
        yield from blocks(chunk)
