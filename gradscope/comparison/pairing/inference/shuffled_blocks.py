"""`shuffled_blocks` finds the equal blocks of some tensors that make up another one, in whatever order.

A block is found by the norms of its rows, which are computed once, whatever the size of the blocks. The largest blocks
are tried first: smaller ones say less. Of several that look alike, that of a tensor is meant whose name is most like
those of the others. Last, single rows may be in whatever order, as where one part has the halves of its heads
interleaved, or the columns of two kernels are side by side. Products with a few vectors tell them apart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations, product, takewhile
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import AxisLayout, BlockOrder, layouts, relative_error
from gradscope.comparison.pairing.inference.equal_parts import FEW_BLOCKS, SAME, norm_of

#: The most blocks that a tensor is cut into: query, key and value of 64 heads.
_MOST_BLOCKS: Final = 192

#: The numbers of gates of a cell whose orders are tried.
_GATES: Final = (2, 3, 4)

#: The fewest rows of a block.
_FEWEST_ROWS: Final = 2

#: The most single rows that are in another order, the number of products that tell them apart, and how near those of
#: two that are the same are to each other: parameters are copied.
_MOST_ROWS: Final = 1 << 15
_PRODUCTS: Final = 3
_COPIED: Final = 1e-6


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


def shuffled_rows(packed: Array, parts: Mapping[str, Array]) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Returns the tensors whose rows make up another along the first axis, and the order of the rows.

    Args:
        packed: The tensor that is made up.
        parts: The tensors that may be its parts, of its shape but for the first axis.

    Returns:
        As `shuffled_blocks`, for blocks of one row.
    """
    own = [(name, place) for name, part in parts.items() for place in range(len(part))]
    if not len(packed) <= len(own) <= _MOST_ROWS:
        return None
    table = np.concatenate([_products(part) for part in parts.values()])
    order = np.argsort(table[:, 0])
    ranked, wanted = table[order], _products(packed)
    near = _COPIED * np.linalg.norm(wanted, axis=1)
    first, last = (np.searchsorted(ranked[:, 0], wanted[:, 0] + sign * near) for sign in (-1, 1))
    chosen: list[tuple[str, int]] = []
    for row, start, end, limit in zip(wanted, first, last, near, strict=True):
        fitting = order[start:end][np.abs(ranked[start:end] - row).max(1, initial=0) <= limit]
        if len(fitting) != 1:
            return None
        chosen.append(own[int(fitting[0])])
    names = tuple(dict.fromkeys(name for name, _ in chosen))
    if len({*chosen}) < len(chosen) or sum(len(parts[name]) for name in names) != len(packed):
        return None
    starts = dict(zip(names, np.cumsum([0, *(len(parts[name]) for name in names)]).tolist(), strict=False))
    return names, tuple(starts[name] + place for name, place in chosen)


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


def reordered_rows(ref: Array, cand: Array) -> tuple[AxisLayout, ...]:
    """Returns the layout in which single rows of a candidate's tensor, in another order, are the reference's.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor.

    Returns:
        One layout, of a block of one row; empty where there is none, or where rows are equal to each other.
    """
    if ref.size == 0 or not math.isclose(norm_of(ref), norm_of(cand), rel_tol=SAME):
        return ()
    # Rows are those along an axis: no axis is split or merged.
    for layout in (each for each in layouts(ref.shape, cand.shape) if each.split == cand.shape):
        made = layout.read(cand)
        for joined in (at for at, count in enumerate(ref.shape) if count > 1 and made.shape == ref.shape):
            found = shuffled_rows(np.moveaxis(ref, joined, 0), {"": np.moveaxis(made, joined, 0)})
            if found is not None:
                axis = layout.axes[joined]
                split, shape = (_of_one_row(*each) for each in ((cand.shape, axis), (ref.shape, joined)))
                return (AxisLayout(split, layout.axes, shape, blocks=BlockOrder(axis, joined, found[1])),)
    return ()


def _of_one_row(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Returns the shape of one row along an axis."""
    return (*shape[:axis], 1, *shape[axis + 1 :])


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


def _products(array: Array) -> Array:
    """Returns the products of each row with a few vectors."""
    rows = array.reshape(len(array), -1).astype(np.float64)
    vectors = np.random.default_rng(0).normal(size=(rows.shape[1], _PRODUCTS))  # seeded: comparisons are reproducible
    return rows @ vectors


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


class Cover(NamedTuple):
    """Cover has the tensors that make up another along an axis, in order.

    Attributes:
        parts: The names of the tensors.
        blocks: For each of equal blocks along the axis `across`, its place among those of the joined tensors; () where
            these are in order.
        across: The axis.
    """

    parts: tuple[str, ...]
    blocks: tuple[int, ...] = ()
    across: int = 0


def _in_order(packed: Array, parts: Mapping[str, Array], axis: int, tolerance: float) -> Cover | None:
    """Returns the tensors that make up another along an axis, in order."""
    along = {name: np.moveaxis(part, axis, 0) for name, part in parts.items()}
    found = _cover(np.moveaxis(packed, axis, 0), along, tolerance)
    return Cover(found) if len(found) > 1 else None


def _in_other_order(packed: Array, parts: Mapping[str, Array], axis: int, tolerance: float) -> Cover | None:
    """Returns the tensors whose blocks make up another along an axis, in another order."""
    return _shuffled(shuffled_blocks, packed, parts, axis, tolerance)


def _row_by_row(packed: Array, parts: Mapping[str, Array], axis: int, tolerance: float) -> Cover | None:
    """Returns the tensors whose single rows make up another along an axis, in another order."""
    return _shuffled(shuffled_rows, packed, parts, axis, tolerance)


def _shuffled(
    find: Callable[[Array, Mapping[str, Array]], tuple[tuple[str, ...], tuple[int, ...]] | None],
    packed: Array,
    parts: Mapping[str, Array],
    axis: int,
    tolerance: float,
) -> Cover | None:
    packed = np.moveaxis(packed, axis, 0)
    along = {name: np.moveaxis(part, axis, 0) for name, part in parts.items()}
    fitting = {name: part for name, part in along.items() if part.shape[1:] == packed.shape[1:]}
    found = find(packed, fitting) if len(fitting) > 1 else None
    if found is None or len(found[0]) < 2:
        return None
    names, blocks = found
    made = reordered(np.concatenate([fitting[name] for name in names]), blocks, 0)
    return Cover(names, blocks, axis) if relative_error(packed, made) <= tolerance else None


def _with_gates_in_other_order(packed: Array, parts: Mapping[str, Array], axis: int, tolerance: float) -> Cover | None:
    """Returns the tensors that make up another along an axis, where its gates are in another order along the other."""
    if packed.ndim != 2:
        return None
    across = 1 - axis
    # The norms of rows do not depend on the order of what is in them, and rule out almost all.
    norms = {name: np.linalg.norm(part, axis=across) for name, part in parts.items()}
    fitting = {name: each for name, each in norms.items() if parts[name].shape[across] == packed.shape[across]}
    names = _cover(np.linalg.norm(packed, axis=across), fitting, tolerance)
    joined = np.concatenate([parts[name] for name in names], axis=axis) if len(names) > 1 else packed[:0]
    for count in _GATES if len(names) > 1 else ():
        for blocks in permutations(range(count)) if packed.shape[across] % count == 0 else ():
            if relative_error(packed, reordered(joined, blocks, across)) <= tolerance:
                return Cover(names, blocks, across)
    return None


def _cover(packed: Array, parts: Mapping[str, Array], tolerance: float) -> tuple[str, ...]:
    """Returns the tensors that make up another along its first axis, in order; empty where some of it is none."""
    found: list[str] = []
    start = 0
    while start < len(packed):
        fitting = (
            name
            for name, part in parts.items()
            if name not in found
            and part.shape[1:] == packed.shape[1:]
            and 0 < len(part) <= len(packed) - start
            and relative_error(packed[start : start + len(part)], part) <= tolerance
        )
        if (name := next(fitting, None)) is None:
            return ()
        found.append(name)
        start += len(parts[name])
    return tuple(found)


#: The ways in which tensors make up another, the likeliest first.
WAYS: Final = (_in_order, _in_other_order, _with_gates_in_other_order, _row_by_row)
