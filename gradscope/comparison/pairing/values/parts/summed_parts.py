"""Parts of parameters are what others of the other dump add up to, each part alone, or the two terms of it apart.

The terms may be two parameters of one layer, as the biases of PyTorch's LSTM, or the rows of one, as those of a GRU of
Keras.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import wide_values
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, PARAM_GRAD

#: The most tensors of one shape in one layer of which every two are added.
_MOST_TERMS: Final = 8

#: The axes of a parameter whose rows may be terms, and the number of its rows.
_AXES: Final = 2
_ROWS: Final = 2

#: The numbers of blocks of a sum that may be in another order: the gates of a cell; and the fewest elements of one.
GATES: Final = (3, 4)
_LEAST_BLOCK: Final = 2


class Part(NamedTuple):
    """Part is one of the equal parts along the first axis of a parameter, or all of it.

    Attributes:
        key: The parameter.
        place: Which of the parts.
        whole: The number of parts.
        is_row: Whether it is without that axis.
    """

    key: str
    place: int = 0
    whole: int = 1
    is_row: bool = False

    def of(self, array: Array) -> Array:
        """Returns the part of an array."""
        part = np.split(array, self.whole)[self.place] if self.whole > 1 else array
        return part[0] if self.is_row else part


#: Parts of parameters that joined are a sum, each block alone, or its two terms.
Blocks: TypeAlias = tuple[tuple[Part, ...], ...]

#: The two terms of a sum.
Terms: TypeAlias = tuple[Part, Part]


def pairs_of_terms(source: DumpSource, keys: Iterable[str]) -> Iterator[tuple[Shape, Terms]]:
    """Yields every two parameters of one layer and shape, and the two rows of one.

    Args:
        source: The dump that has them.
        keys: The parameters.
    """
    for (_, shape), own in _by_layer(source, keys).items():
        if shape and len(own) <= _MOST_TERMS:
            yield from ((shape, (Part(one), Part(two))) for one, two in combinations(own, 2))
        if len(shape) == _AXES and shape[0] == _ROWS:
            yield from ((shape[1:], (Part(key, 0, _ROWS, True), Part(key, 1, _ROWS, True))) for key in own)


def _by_layer(source: DumpSource, keys: Iterable[str]) -> Mapping[tuple[str, Shape], list[str]]:
    """Returns parameters by the layer that has them and their shape."""
    found: defaultdict[tuple[str, Shape], list[str]] = defaultdict(list)
    for key in filter(lambda key: is_stored(source, key), keys):
        found[re.split(r"[/.](?=[^/.]*$)", key)[0], source.entry(key).shape].append(key)
    return found


def is_stored(source: DumpSource, key: str) -> bool:
    """Returns whether a key is that of a parameter of floating-point numbers whose elements are known."""
    entry = source.entry(key)
    return entry.family == PARAM and source.has_tensor(key) and dtype_class(entry.dtype) == "float"


def is_multiple(size: Shape, part: Shape, most: int) -> bool:
    """Returns whether a shape is that of several parts joined along the first axis, and of no more than there are."""
    return size[1:] == part[1:] and bool(size) and size[0] in range(2 * part[0], (most + 1) * part[0], part[0])


def parts_of(source: DumpSource, keys: Sequence[str], size: int) -> Iterator[tuple[Part, Array]]:
    """Yields the parts of parameters that have so many elements along the first axis."""
    for key in keys:
        array = source.array(key)
        whole = len(array) // size
        yield from ((part, part.of(array)) for part in (Part(key, place, whole) for place in range(whole)))


def are_whole(blocks: Blocks) -> bool:
    """Returns whether no part of the parameters in some blocks is left over."""
    used = Counter(part.key for part in chain.from_iterable(blocks))
    return all(used[part.key] == part.whole for part in chain.from_iterable(blocks))


def blocks_of(
    one: Array, two: Array, count: int, candidates: Mapping[Part, Array], *, of_gradients: bool = False
) -> Blocks:
    """Returns for each block of two terms the part that is its sum, or else the two that it has apart; () if none.

    Args:
        one: The one term.
        two: The other one.
        count: The number of blocks.
        candidates: The parts.
        of_gradients: Whether all these are gradients, of which that of a sum is that of each term.
    """
    found: list[tuple[Part, ...]] = []
    free, family = dict(candidates), PARAM_GRAD if of_gradients else PARAM

    def taken(*arrays: Array) -> tuple[Part, ...]:
        keys: list[Part] = []
        for each in arrays:
            key = next((key for key in free if key not in keys and is_close(each, free[key], family)), None)
            if key is None:
                return ()
            keys.append(key)
        return tuple(keys)

    for first, second in zip(np.split(one, count), np.split(two, count), strict=True):
        if of_gradients:
            block = taken(first, second) or (taken(first) if is_close(first, second, family) else ())
        else:
            block = taken(first + second) or taken(first, second)
        if not block:
            return ()
        found.append(block)
        for key in block:
            del free[key]
    return tuple(found)


def blocks_of_terms(own: tuple[Array, Array], other: tuple[Array, Array], terms: Terms) -> Blocks:
    """Returns for each block of two terms the two of other terms that have the same sum; () if there are none.

    Args:
        own: The two terms.
        other: The other ones, of the same shape.
        terms: Their parts, two whole parameters.
    """
    total, its = own[0] + own[1], other[0] + other[1]
    for count in (count for count in (1, *GATES) if len(total) % count == 0 and total.size // count >= _LEAST_BLOCK):
        cut = np.split(its, count)
        fitting = [[at for at in range(count) if is_close(each, cut[at], PARAM)] for each in np.split(total, count)]
        places = [found[0] for found in fitting if len(found) == 1]
        if len({*places}) < count:
            continue
        # What both programs have apart says which term is which.
        terms_of = [[np.split(each, count)[at] for at in range(count)] for each in other]
        apart = [
            is_close(np.split(own[0], count)[number], terms_of[1][at], PARAM)
            and is_close(np.split(own[1], count)[number], terms_of[0][at], PARAM)
            for number, at in enumerate(places)
        ]
        ordered = terms[::-1] if any(apart) else terms
        return tuple(tuple(Part(term.key, at, count) for term in ordered) for at in places)
    return ()


def is_close(one: Array, other: Array, family: str) -> bool:
    """Returns whether two tensors of a family are the same within its tolerance."""
    tolerance = default_tolerance(family, "float32", "float32")
    one, other = wide_values(one), wide_values(other)
    return one.shape == other.shape and bool(np.linalg.norm(one - other) <= tolerance * np.linalg.norm(one))
