"""`shuffled_blocks` finds the equal blocks of some tensors that make up another one, in whatever order.

A block is found by the norms of its rows, which are computed once, whatever the size of the blocks. The largest blocks
are tried first: smaller ones say less. Of several that look alike, that of a tensor is meant whose name is most like
those of the others.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product, takewhile
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.inference.equal_parts import FEW_BLOCKS, SAME, norm_of

#: The most blocks that a tensor is cut into: query, key and value of 64 heads.
_MOST_BLOCKS: Final = 192

#: The fewest rows of a block.
_FEWEST_ROWS: Final = 2


def shuffled_blocks(packed: Array, parts: Mapping[str, Array]) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Returns the tensors whose blocks make up another along the first axis, and the order of the blocks.

    Args:
        packed: The tensor that is made up.
        parts: The tensors that may be its parts, of its shape but for the first axis.

    Returns:
        The names of the parts, and for each block of the tensor its place among the blocks of the joined parts; None
        where some block is not found, or could be several.
    """
    rows, own = _norms(packed), {name: _norms(part) for name, part in parts.items()}
    for size in _sizes(len(packed), [len(part) for part in parts.values()]):
        pieces = [
            (name, place, norms[start : start + size])
            for name, norms in own.items()
            if len(norms) % size == 0
            for place, start in enumerate(range(0, len(norms), size))
        ]
        blocks = [rows[start : start + size] for start in range(0, len(rows), size)]
        chosen = [pieces[place][:2] for place in _places(blocks, pieces)]
        names = tuple(dict.fromkeys(name for name, _ in chosen))
        if chosen and sum(len(own[name]) for name in names) == len(rows):
            first = dict(zip(names, np.cumsum([0, *(len(own[name]) // size for name in names)]).tolist(), strict=False))
            return names, tuple(first[name] + place for name, place in chosen)
    return None


def shuffled_counts(ref: Array, cand: Array) -> Iterator[int]:
    """Yields the numbers of blocks that two tensors may be made of in different orders, as heads side by side are.

    Args:
        ref: A tensor.
        cand: Another one; their axes may be in different orders.
    """
    if not math.isclose(norm_of(ref), norm_of(cand), rel_tol=SAME):
        return
    for joined, axis in product(range(ref.ndim), range(cand.ndim)):
        if ref.shape[joined] == cand.shape[axis] > max(FEW_BLOCKS):
            found = shuffled_blocks(np.moveaxis(ref, joined, 0), {"": np.moveaxis(cand, axis, 0)})
            if found is not None:
                yield len(found[1])


def reordered(array: Array, blocks: Sequence[int], axis: int) -> Array:
    """Returns a tensor with the equal blocks along an axis in an order.

    Args:
        array: The tensor.
        blocks: For each block of the result, its place in the tensor.
        axis: The axis.
    """
    parts = np.split(array, len(blocks), axis=axis)
    return np.concatenate([parts[block] for block in blocks], axis=axis)


def _norms(array: Array) -> Array:
    """Returns the norm of each row."""
    return np.linalg.norm(array.reshape(len(array), -1).astype(np.float64), axis=1)


def _sizes(size: int, parts: Sequence[int]) -> Iterator[int]:
    """Yields the numbers of rows that blocks may have, the largest first."""
    common = {math.gcd(size, part) for part in parts}
    least = max(_FEWEST_ROWS, -(-size // _MOST_BLOCKS))
    yield from (each for each in range(max(common, default=0), least - 1, -1) if any(one % each == 0 for one in common))


def _places(blocks: Sequence[Array], pieces: Sequence[tuple[str, int, Array]]) -> list[int]:
    """Returns which piece each block is; none where one is no piece or could be several, or two are the same."""
    if len(pieces) < len(blocks):
        return []
    table = np.array([norms for _, _, norms in pieces])
    near: list[list[int]] = []
    for block in blocks:
        near.append(_near(table, block))
        if not near[-1]:
            return []
    certain = {pieces[each[0]][0] for each in near if len(each) == 1}
    found: list[int] = []
    for each in near:
        shared = {place: map(partial(_shared, pieces[place][0]), certain) for place in each}
        best = Counter({place: max(words, default=0) for place, words in shared.items()}).most_common(2)
        if not best or (len(best) > 1 and best[0][1] == best[1][1]):
            return []
        found.append(best[0][0])
    return found if len({*found}) == len(found) else []


def _near(table: Array, block: Array) -> list[int]:
    """Returns the rows of a table that are the norms of a block."""
    return np.flatnonzero(np.abs(table - block).max(1) <= SAME * float(np.linalg.norm(block))).tolist()


def _shared(one: str, other: str) -> int:
    """Returns the number of words with which both of two names begin."""
    pairs = zip(re.split("[/.]", one), re.split("[/.]", other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
