"""`sums` recognises stored tensors that add up to one of the other dump, as the two biases of PyTorch's LSTM do.

The sum may be in parts, where a framework has a bias for each gate; of a GRU, some gates have both terms apart, and one
of these may be joined with the sums, as in Equinox. Such tensors have no counterpart: infinitely many terms have one
sum. That the sum is right is all that there is to compare, and that the gradient with respect to each term is that with
respect to the sum.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import wide_values
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.inference.equal_parts import assigned
from gradscope.comparison.pairing.inference.terms_of_sums import blocks_of_sum, pairs_adding_up, projection
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.values.parts.packed_parameters import packed_parameters
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, PARAM_GRAD, key_of, split_key


class _Part(NamedTuple):
    """_Part is one of the equal parts along the first axis of a parameter, or all of it."""

    key: str
    place: int = 0
    whole: int = 1

    def of(self, array: Array) -> Array:
        """Returns the part of an array."""
        return np.split(array, self.whole)[self.place] if self.whole > 1 else array


#: Parts of parameters that joined are a sum, each block alone, or its two terms.
_Blocks: TypeAlias = tuple[tuple[_Part, ...], ...]

#: The most tensors of one shape in one layer of which every two are added.
_MOST_TERMS: Final = 8


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
            key: f"a part of {split_key(term)[1]}"
            for block in blocks
            if len(block) > 1
            for (key, _, whole), term in zip(block, pair, strict=True)
            if whole == 1
        }
        are = "joined are the sum of" if joined else "is the sum of"
        found |= dict.fromkeys(
            pair, f"{of_parts} joined are the parts and sums of {names}" if apart else f"{of_parts} {are} {names}"
        )
        if all(_has_gradients(each.holder, blocks, place, each.other, term) for place, term in enumerate(pair)):
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
        pair: The terms.
    """

    holder: DumpSource
    blocks: _Blocks
    other: DumpSource
    pair: tuple[str, str]

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
        ):
            found = Added(holder=holder, blocks=blocks, other=other, pair=pair)
            if taken.isdisjoint((*found.parts, *pair)):
                taken |= {*found.parts, *pair}
                yield found


def _has_gradients(holder: DumpSource, blocks: _Blocks, place: int, other: DumpSource, term: str) -> bool:
    """Returns whether the gradient of a term is that of the blocks, of those that are apart that of its own part."""
    chosen = [block[min(place, len(block) - 1)] for block in blocks]
    gradients = [_gradient(holder, part.key) for part in chosen]
    known = [part.of(each) for part, each in zip(chosen, gradients, strict=True) if each is not None]
    expected = _gradient(other, term)
    if expected is None or len(known) < len(gradients):
        return False
    return _is_close(known[0] if len(known) == 1 else np.concatenate(known), expected, PARAM_GRAD)


def _added_in_parts(
    holder: DumpSource,
    keys: Sequence[str],
    other: DumpSource,
    terms: Sequence[str],
    packed: Mapping[str, Sequence[str]],
) -> Iterator[tuple[_Blocks, tuple[str, str]]]:
    """Yields parameters of one dump that joined are the sum of two of the other, which one layer has, and those two.

    Where the second term is zero in some blocks, the first may be paired already, as what the parts are packed in.

    Args:
        holder: The dump that has the sum.
        keys: Its parameters without a counterpart.
        other: The dump that has the terms.
        terms: Its parameters without a counterpart.
        packed: Its parameters that are paired as packed ones, with their parts.
    """
    by_layer = _by_layer(other, (*terms, *packed))
    by_shape: defaultdict[Shape, list[str]] = defaultdict(list)
    for key in filter(lambda key: _is_stored(holder, key), keys):
        by_shape[holder.entry(key).shape].append(key)
    for (_, shape), own in by_layer.items():
        pairs = combinations(own, 2) if shape and len(own) <= _MOST_TERMS else ()
        for pair in (each for each in pairs if not packed.keys() >= {*each}):
            one, two = (wide_values(other.array(key)) for key in pair)
            parts = [part for key in pair for part in packed.get(key, ())]
            for part, free in by_shape.items():
                singles = [*free, *(key for key in parts if holder.entry(key).shape == part)]
                count = shape[0] // part[0] if part and part[0] else 0
                if count < 2 or (part[0] * count, *part[1:]) != shape or not (np.any(one) and np.any(two)):
                    continue
                larger = [key for size, some in by_shape.items() if _is_multiple(size, part, count) for key in some]
                arrays = dict(_parts(holder, [*singles, *larger], part[0]))
                if len(arrays) < count:
                    continue
                found = assigned(np.split(one + two, count), arrays)
                blocks = _blocks(one, two, count, arrays) if found is None else tuple((each,) for each in found[0])
                if blocks and _are_whole(blocks):
                    yield blocks, pair
                    break


def _by_layer(source: DumpSource, keys: Iterable[str]) -> Mapping[tuple[str, Shape], list[str]]:
    """Returns parameters by the layer that has them and their shape."""
    found: defaultdict[tuple[str, Shape], list[str]] = defaultdict(list)
    for key in filter(lambda key: _is_stored(source, key), keys):
        found[re.split(r"[/.](?=[^/.]*$)", key)[0], source.entry(key).shape].append(key)
    return found


def _added_in_blocks(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[_Blocks, tuple[str, str]]]:
    """Yields biases, and the two whose sum they are, with other blocks first, or one from which a number is taken."""
    sums = [key for key in keys if _is_stored(holder, key) and len(holder.entry(key).shape) == 1]
    for (_, shape), own in _by_layer(other, terms).items() if sums else ():
        for pair in combinations(own, 2) if len(own) <= _MOST_TERMS else ():
            total = wide_values(other.array(pair[0])) + wide_values(other.array(pair[1]))
            for key in (key for key in sums if holder.entry(key).shape == shape):
                gradients = _gradient(other, pair[0]), _gradient(holder, key)
                if order := blocks_of_sum(total, wide_values(holder.array(key)), gradients):
                    yield tuple((_Part(key, place, len(order)),) for place in order), pair


def _is_multiple(size: Shape, part: Shape, most: int) -> bool:
    """Returns whether a shape is that of several parts joined along the first axis, and of no more than there are."""
    return size[1:] == part[1:] and bool(size) and size[0] in range(2 * part[0], (most + 1) * part[0], part[0])


def _parts(source: DumpSource, keys: Sequence[str], size: int) -> Iterator[tuple[_Part, Array]]:
    """Yields the parts of parameters that have so many elements along the first axis."""
    for key in keys:
        array = source.array(key)
        whole = len(array) // size
        yield from ((part, part.of(array)) for part in (_Part(key, place, whole) for place in range(whole)))


def _are_whole(blocks: _Blocks) -> bool:
    """Returns whether no part of the parameters in some blocks is left over."""
    used = Counter(part.key for part in chain.from_iterable(blocks))
    return all(used[part.key] == part.whole for part in chain.from_iterable(blocks))


def _blocks(one: Array, two: Array, count: int, candidates: Mapping[_Part, Array]) -> _Blocks:
    """Returns for each block of two terms the part that is its sum, or else the two that it has apart; () if none."""
    found: list[tuple[_Part, ...]] = []
    free = dict(candidates)

    def taken(*arrays: Array) -> tuple[_Part, ...]:
        keys: list[_Part] = []
        for each in arrays:
            key = next((key for key in free if key not in keys and _is_close(each, free[key], PARAM)), None)
            if key is None:
                return ()
            keys.append(key)
        return tuple(keys)

    for first, second in zip(np.split(one, count), np.split(two, count), strict=True):
        block = taken(first + second) or taken(first, second)
        if not block:
            return ()
        found.append(block)
        for key in block:
            del free[key]
    return tuple(found)


def _added(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[_Blocks, tuple[str, str]]]:
    """Yields parameters of one dump, and two of the other of the same shape that add up to each."""
    by_shape: defaultdict[Shape, list[str]] = defaultdict(list)
    for key in filter(lambda key: _is_stored(other, key), terms):
        by_shape[other.entry(key).shape].append(key)
    projected: dict[Shape, Array] = {}
    for packed in filter(lambda key: _is_stored(holder, key), keys):
        shape = holder.entry(packed).shape
        if len(by_shape[shape]) < 2:
            continue
        if shape not in projected:
            projected[shape] = np.array([projection(other.array(key)) for key in by_shape[shape]])
        expected = holder.array(packed)
        for places in pairs_adding_up(projected[shape], projection(expected)):
            pair = (by_shape[shape][places[0]], by_shape[shape][places[1]])
            one, two = (wide_values(other.array(key)) for key in pair)
            if np.any(one) and np.any(two) and _is_close(expected, one + two, PARAM):
                yield ((_Part(packed),),), pair
                break


def _is_stored(source: DumpSource, key: str) -> bool:
    entry = source.entry(key)
    return entry.family == PARAM and source.has_tensor(key) and dtype_class(entry.dtype) == "float"


def _gradient(source: DumpSource, key: str) -> Array | None:
    gradient = key_of(PARAM_GRAD, split_key(key)[1])
    return source.array(gradient) if source.has_tensor(gradient) else None


def _is_close(one: Array, other: Array, family: str) -> bool:
    tolerance = default_tolerance(family, "float32", "float32")
    one, other = wide_values(one), wide_values(other)
    return one.shape == other.shape and bool(np.linalg.norm(one - other) <= tolerance * np.linalg.norm(one))
