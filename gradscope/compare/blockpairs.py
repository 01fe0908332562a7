"""Block pairs: the elements of two tensors side by side, a cache's worth at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gradscope.arrays.blocks import Array, blocks


def block_pairs(ref: Iterable[Array], cand: Iterable[Array]) -> Iterator[tuple[Array, Array]]:
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


def equal_bytes(ref: Iterable[Array], cand: Iterable[Array]) -> bool:
    """Whether two tensors of one size have the same dtype and the same bytes; arguments as for `block_pairs`."""
    return all(same_bytes(*pair) for pair in block_pairs(ref, cand))


def same_bytes(ref: Array, cand: Array) -> bool:
    """Whether two blocks of one size have the same dtype and the same bytes."""
    if ref.dtype != cand.dtype:
        return False
    word = np.dtype(f"u{min(ref.dtype.itemsize, 8)}")
    return np.array_equal(ref.view(word), cand.view(word))


def _block_stream(chunks: Iterable[Array]) -> Iterator[Array]:
    for chunk in chunks:
        yield from blocks(chunk)
