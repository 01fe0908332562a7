"""Derives what the parts of a packed tensor are called, from the names of packed tensors whose parts are known."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, takewhile, zip_longest
from operator import itemgetter
from typing import Final, TypeAlias

from gradscope.naming import key_of, split_key
from gradscope.naming.numbering import NUMBER

#: What the kernels and the biases of layers are called.
_KINDS: Final = frozenset({"weight", "kernel", "w", "bias", "b"})

#: The largest number of numbers in a name that move together, as in `block3/norm3`.
_MOST_MOVED: Final = 3

_NUMBER: Final = re.compile(NUMBER)

#: The words around a name's numbers, the places of the numbers that move, and the others with how far these differ.
_Fixed: TypeAlias = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]

#: The place of the number that moves in the names of parts, and these with that number less the one of the tensor.
_Moving: TypeAlias = tuple[int, tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]]


class SolvedNames:
    """`SolvedNames` derive, from the names of packed tensors and of their parts, those of the parts of another one."""

    def __init__(self) -> None:
        self._ends: defaultdict[tuple[str, ...], dict[tuple[tuple[str, ...], ...], int]] = defaultdict(dict)
        self._added = 0

    def add(self, key: str, parts: Sequence[str]) -> None:
        """Adds a packed tensor and its parts."""
        own, words = words_of(key), [words_of(part) for part in parts]
        common = _common_end([own, *words])
        for length in range(len(own) - common, len(own) + 1):
            ends = tuple(part[: len(part) - len(own) + length] for part in words)
            self._ends[own[:length]].setdefault(ends, self._added)
            self._added += 1

    def parts_of(self, key: str) -> Iterator[tuple[str, ...]]:
        """Yields what the parts of a tensor would be called, by what was added first."""
        name, family = words_of(key), split_key(key)[0]
        found = [
            (place, tuple(key_of(family, "/".join((*end, *name[length:]))) for end in ends))
            for length in range(len(name) + 1)
            for ends, place in self._ends.get(name[:length], {}).items()
        ]
        yield from (names for _, names in sorted(found))


class ShiftedNames:
    """`ShiftedNames` derive the names of the parts of a tensor from those of one that has another number in its name.

    The number that all of the other's parts have in the same place is moved as far as it is in the tensors' names.
    """

    def __init__(self) -> None:
        # By what a name is without the numbers that move: how the parts' numbers lie to these, in the order added.
        self._parts: defaultdict[_Fixed, dict[_Moving, int]] = defaultdict(dict)
        self._added = 0

    def add(self, key: str, parts: Sequence[str]) -> None:
        """Adds a packed tensor and its parts."""
        split = [_numbered(part) for part in parts]
        places = zip(*(numbers for _, numbers in split), strict=False)
        # The number that all parts have in the same place is that of the block, and not that of the part.
        place = next((place for place, own in enumerate(places) if len(set(own)) == 1), None)
        if place is None:
            return
        for fixed, start in _moving(key):
            moved = tuple((around, _replaced(own, place, own[place] - start)) for around, own in split)
            self._parts[fixed].setdefault((place, moved), self._added)
        self._added += 1

    def parts_of(self, key: str) -> Iterator[tuple[str, ...]]:
        """Yields what the parts of a tensor would be called, by what was added first; as `spelt` spells them."""
        found = [
            (added, start, place, moved)
            for fixed, start in _moving(key)
            for (place, moved), added in self._parts.get(fixed, {}).items()
        ]
        for _, start, place, moved in sorted(found, key=itemgetter(0)):
            yield tuple(spelt(_joined(around, _replaced(own, place, own[place] + start))) for around, own in moved)


def _moving(key: str) -> Iterator[tuple[_Fixed, int]]:
    """Yields what stays the same in a name while some of its numbers move together, and the first of these numbers."""
    around, numbers = _numbered(key)
    for count in range(1, min(len(numbers), _MOST_MOVED) + 1):
        for places in combinations(range(len(numbers)), count):
            start = numbers[places[0]]
            kept = (number - start if place in places else number for place, number in enumerate(numbers))
            yield (around, places, tuple(kept)), start


def _replaced(numbers: Sequence[int], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])


def _numbered(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns what is around the numbers in a name, and the numbers."""
    return tuple(_NUMBER.split(name)), tuple(map(int, _NUMBER.findall(name)))


def _joined(around: Sequence[str], numbers: Sequence[int]) -> str:
    return "".join(chain.from_iterable(zip_longest(around, map(str, numbers), fillvalue="")))


def layer_of(key: str) -> tuple[tuple[str, ...], ...]:
    """Returns what the names of the packed kernel and the packed bias of one layer have in common."""
    *scope, last = words_of(key)
    return tuple(scope), tuple(part for part in last.lower().split("_") if part not in _KINDS)


def words_of(key: str) -> tuple[str, ...]:
    """Returns the words of a tensor's name, which frameworks separate by dots or slashes."""
    return tuple(split_key(key)[1].replace(".", "/").split("/"))


def spelt(key: str) -> str:
    """Returns a key with its words separated by slashes."""
    return key_of(split_key(key)[0], "/".join(words_of(key)))


def _common_end(names: Sequence[Sequence[str]]) -> int:
    """Returns the number of words that all names end with."""
    columns = zip(*(reversed(name) for name in names), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
