"""`sums` recognises stored tensors that add up to one of the other dump, as the two biases of PyTorch's LSTM do.

The sum may be in parts, where a framework has a bias for each gate; of a GRU, some gates have both terms apart, and one
of these may be joined with the sums, as in Equinox. Such tensors have no counterpart: infinitely many terms have one
sum. Or one parameter has both terms as its rows, as the biases of a GRU in Keras. That the sum is right is all that
there is to compare, and that the gradient with respect to each term is that with respect to the sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import wide_values
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.inference.equal_parts import SAME, assigned
from gradscope.comparison.pairing.inference.terms_of_sums import blocks_of_sum, pairs_adding_up, projection
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.values.parts.packed_parameters import packed_parameters
from gradscope.comparison.pairing.values.parts.summed_parts import (
    GATES,
    Blocks,
    Part,
    Terms,
    are_whole,
    blocks_of,
    blocks_of_terms,
    is_close,
    is_multiple,
    is_stored,
    pairs_of_terms,
    parts_of,
)
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, PARAM_GRAD, key_of, split_key


def sums(dumps: Dumps, pairing: Pairing) -> dict[str, str]:
    """Returns why parameters need no counterpart that add up to one of the other dump, and that one.

    Args:
        dumps: The dumps.
        pairing: Their pairing.

    Returns:
        Sentences by key, also of the gradients with respect to them.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    found: dict[str, str] = {}
    for each in added(dumps, pairing):
        parts, pair, blocks = each.parts, each.pair, each.blocks
        names, of_parts = (" and ".join(split_key(key)[1] for key in some) for some in (pair, parts))
        joined, apart = len(parts) > 1, any(len(block) > 1 for block in blocks)
        found |= dict.fromkeys(parts, f"a part of the sum of {names}" if joined else f"the sum of {names}")
        found |= {
            part.key: f"a part of {split_key(term.key)[1]}"
            for block in blocks
            if len(block) > 1
            for part, term in zip(block, each.terms, strict=True)
            if part.whole == 1
        }
        are = "joined are the sum of" if joined else "is the sum of"
        found |= dict.fromkeys(
            pair, f"{of_parts} joined are the parts and sums of {names}" if apart else f"{of_parts} {are} {names}"
        )
        if all(_has_gradients(each.holder, blocks, place, each.other, term) for place, term in enumerate(each.terms)):
            same = (
                f"the gradients of {names} are those of {of_parts}"
                if apart
                else f"the gradient of {names} is that of {of_parts}"
            )
            found |= {key_of(PARAM_GRAD, split_key(key)[1]): same for key in (*parts, *pair)}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Added stores parameters of one dump that joined are the sum of two of the other.

    Attributes:
        holder: The dump that has the sum.
        blocks: The parameters that are the sum, in blocks.
        other: The dump that has the terms.
        terms: The terms.
    """

    holder: DumpSource
    blocks: Blocks
    other: DumpSource
    terms: Terms

    @property
    def pair(self) -> tuple[str, ...]:
        """The parameters that have the terms: one for each, or one for both."""
        return tuple(dict.fromkeys(term.key for term in self.terms))

    def values(self, place: int) -> Array:
        """Returns one of the terms."""
        return self.terms[place].of(self.other.array(self.terms[place].key))

    @property
    def parts(self) -> tuple[str, ...]:
        """The parameters that are the sum, in order."""
        return tuple(dict.fromkeys(part.key for part in chain.from_iterable(self.blocks)))


def added(dumps: Dumps, pairing: Pairing) -> Iterator[Added]:
    """Yields parameters that add up to others of the other dump, each parameter once.

    Args:
        dumps: The dumps.
        pairing: Their pairing.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    taken: set[str] = set()
    in_cand, in_ref = packed_parameters(pairing.matched)
    ref, cand = pairing.only_ref, pairing.only_cand
    for holder, keys, other, terms, packed in (
        (dumps.cand, cand, dumps.ref, ref, in_ref), (dumps.ref, ref, dumps.cand, cand, in_cand),
    ):  # fmt: skip
        for blocks, pair in chain(
            _added(holder, keys, other, terms),
            _added_in_parts(holder, keys, other, terms, packed),
            _added_in_blocks(holder, keys, other, terms),
            _added_to_terms(holder, keys, other, terms),
            _rows_of_zeros(holder, keys, other, terms),
        ):
            found = Added(holder=holder, blocks=blocks, other=other, terms=pair)
            if taken.isdisjoint((*found.parts, *found.pair)):
                taken |= {*found.parts, *found.pair}
                yield found


def rows_of_zeros(dumps: Dumps, pairing: Pairing) -> frozenset[str]:
    """Returns the parameters of zeros of which one has the others as its rows, as their gradients say.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
    """
    sides = (dumps.cand, pairing.only_cand), (dumps.ref, pairing.only_ref)
    found = (each for (one, other) in (sides, sides[::-1]) for each in _rows_of_zeros(*one, *other))
    return frozenset(part.key for blocks, pair in found for part in (*chain.from_iterable(blocks), *pair))


def _has_gradients(holder: DumpSource, blocks: Blocks, place: int, other: DumpSource, term: Part) -> bool:
    """Returns whether the gradient of a term is that of the blocks, of those that are apart that of its own part."""
    chosen = [block[min(place, len(block) - 1)] for block in blocks]
    gradients = [_gradient(holder, part.key) for part in chosen]
    known = [part.of(each) for part, each in zip(chosen, gradients, strict=True) if each is not None]
    expected = _gradient(other, term.key)
    if expected is None or len(known) < len(gradients):
        return False
    return is_close(known[0] if len(known) == 1 else np.concatenate(known), term.of(expected), PARAM_GRAD)


def _added_in_parts(
    holder: DumpSource,
    keys: Sequence[str],
    other: DumpSource,
    terms: Sequence[str],
    packed: Mapping[str, Sequence[str]],
) -> Iterator[tuple[Blocks, Terms]]:
    """Yields parameters of one dump that joined are the sum of two of the other, which one layer has, and those two.

    Where the second term is zero in some blocks, the first may be paired already, as what the parts are packed in.

    Args:
        holder: The dump that has the sum.
        keys: Its parameters without a counterpart.
        other: The dump that has the terms.
        terms: Its parameters without a counterpart.
        packed: Its parameters that are paired as packed ones, with their parts.
    """
    by_shape: defaultdict[Shape, list[str]] = defaultdict(list)
    for key in filter(lambda key: is_stored(holder, key), keys):
        by_shape[holder.entry(key).shape].append(key)
    for shape, pair in pairs_of_terms(other, (*terms, *packed)):
        if packed.keys() >= {term.key for term in pair}:
            continue
        one, two = (wide_values(term.of(other.array(term.key))) for term in pair)
        parts = [part for term in pair for part in packed.get(term.key, ())]
        for part, free in by_shape.items():
            singles = [*free, *(key for key in parts if holder.entry(key).shape == part)]
            count = shape[0] // part[0] if part and part[0] else 0
            if count < 2 or (part[0] * count, *part[1:]) != shape or not (np.any(one) and np.any(two)):
                continue
            larger = [key for size, some in by_shape.items() if is_multiple(size, part, count) for key in some]
            arrays = dict(parts_of(holder, [*singles, *larger], part[0]))
            if len(arrays) < count:
                continue
            found = assigned(np.split(one + two, count), arrays)
            blocks = blocks_of(one, two, count, arrays) if found is None else tuple((each,) for each in found[0])
            if blocks and are_whole(blocks):
                yield blocks, pair
                break


def _added_in_blocks(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[Blocks, Terms]]:
    """Yields biases, and the two whose sum they are, with other blocks first, or one from which a number is taken."""
    sums = [key for key in keys if is_stored(holder, key) and len(holder.entry(key).shape) == 1]
    for shape, pair in pairs_of_terms(other, terms) if sums else ():
        one, two = (wide_values(term.of(other.array(term.key))) for term in pair)
        own = _gradient(other, pair[0].key)
        if pair[0].is_row and not (np.any(one) and np.any(two)):
            continue  # both gradients say which blocks they are
        for key in (key for key in sums if holder.entry(key).shape == shape):
            gradients = None if own is None else pair[0].of(own), _gradient(holder, key)
            if order := blocks_of_sum(one + two, wide_values(holder.array(key)), gradients):
                yield tuple((Part(key, place, len(order)),) for place in order), pair


def _added_to_terms(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[Blocks, Terms]]:
    """Yields two parameters of one dump, and two of the other, or the rows of one, of which the sums are the same."""
    own: list[tuple[float, tuple[Array, Array], Terms]] = []
    for _, pair in pairs_of_terms(holder, keys):
        if not pair[0].is_row:
            one, two = (wide_values(holder.array(term.key)) for term in pair)
            own.append((float(np.linalg.norm(one + two)), (one, two), pair))
    for _, pair in pairs_of_terms(other, terms) if own else ():
        one, two = (wide_values(term.of(other.array(term.key))) for term in pair)
        norm = float(np.linalg.norm(one + two))
        for size, each, parts in own:
            alike = each[0].shape == one.shape and norm > 0 and np.isclose(size, norm, rtol=SAME)
            if alike and (blocks := blocks_of_terms((one, two), each, parts)):
                yield blocks, pair
                break


def _rows_of_zeros(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[Blocks, Terms]]:
    """Yields biases of zeros of one dump, and the rows of zeros of the other that their gradients say they are."""
    rows = [pair for _, pair in pairs_of_terms(other, terms) if pair[0].is_row]
    for pair in (each for each in rows if not np.any(other.array(each[0].key))):
        if (gradient := _gradient(other, pair[0].key)) is None:
            continue
        one, two = (term.of(gradient) for term in pair)
        vectors = (key for key in keys if len(holder.entry(key).shape) == 1 and is_stored(holder, key))
        zeros = {key: _gradient(holder, key) for key in vectors if not np.any(holder.array(key))}
        known = {key: each for key, each in zeros.items() if each is not None}
        whole = {len(each) for each in known.values() if len(each) and len(one) % len(each) == 0}
        gates = {len(one) // count for count in GATES if len(one) % count == 0 and len(one) > count}
        for size in sorted(whole | gates, reverse=True):
            own = {key: each for key, each in known.items() if len(each) % size == 0 and len(each) <= len(one)}
            parts = (Part(key, at, len(each) // size) for key, each in own.items() for at in range(len(each) // size))
            arrays = {part: part.of(own[part.key]) for part in parts}
            if (blocks := blocks_of(one, two, len(one) // size, arrays, of_gradients=True)) and are_whole(blocks):
                yield blocks, pair
                break


def _added(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[Blocks, Terms]]:
    """Yields parameters of one dump, and two of the other of the same shape that add up to each."""
    by_shape: defaultdict[Shape, list[str]] = defaultdict(list)
    for key in filter(lambda key: is_stored(other, key), terms):
        by_shape[other.entry(key).shape].append(key)
    projected: dict[Shape, Array] = {}
    for packed in filter(lambda key: is_stored(holder, key), keys):
        shape = holder.entry(packed).shape
        if len(by_shape[shape]) < 2:
            continue
        if shape not in projected:
            projected[shape] = np.array([projection(other.array(key)) for key in by_shape[shape]])
        expected = holder.array(packed)
        for places in pairs_adding_up(projected[shape], projection(expected)):
            pair = (by_shape[shape][places[0]], by_shape[shape][places[1]])
            one, two = (wide_values(other.array(key)) for key in pair)
            if np.any(one) and np.any(two) and is_close(expected, one + two, PARAM):
                yield ((Part(packed),),), (Part(pair[0]), Part(pair[1]))
                break


def _gradient(source: DumpSource, key: str) -> Array | None:
    gradient = key_of(PARAM_GRAD, split_key(key)[1])
    return source.array(gradient) if source.has_tensor(gradient) else None
