"""Finds the tensors that may be parts of a packed one: by the number of elements, by their norm, and by their names.

Each tensor is read once for its norm, however many packed tensors there are; a packed tensor reads those of its parts'
norms alone.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile, zip_longest
from operator import itemgetter
from typing import Any, Final

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.inference.equal_parts import SAME, norm_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import key_of, split_key

#: The largest number of parts of one tensor.
_MOST_PARTS: Final = 128

#: What the kernels and the biases of layers are called.
_KINDS: Final = frozenset({"weight", "kernel", "w", "bias", "b"})

_NUMBER: Final = re.compile(r"\d+")


class PartCandidates:
    """`PartCandidates` are the tensors of a dump of which none is known yet to be a part of another one's tensor.

    Args:
        source: Their dump.
        keys: Their keys.
    """

    def __init__(self, source: DumpSource, keys: Iterable[str]) -> None:
        self._source = source
        self._free: dict[str, int] = {key: place for place, key in enumerate(keys)}
        self._of_size: defaultdict[int, list[str]] = defaultdict(list)
        self._spelt: dict[str, str] = {}
        self._norms: dict[int, list[tuple[float, str]]] = {}
        self._constants: dict[int, defaultdict[complex, list[str]]] = {}
        for key in self._free:
            self._of_size[self._size(key)].append(key)
            self._spelt[spelt(key)] = key

    def counts(self, size: int) -> Iterator[int]:
        """Yields the numbers of parts that a tensor of so many elements may have, by the sizes of these tensors."""
        for count in range(2, _MOST_PARTS + 1):
            if size and size % count == 0 and len(self._of_size.get(size // count, ())) >= count:
                yield count

    def near(self, blocks: Sequence[Array]) -> list[str]:
        """Returns those of the norm of one of some blocks of equal size, as far as a part's may differ from it."""
        size = blocks[0].size
        if size not in self._norms:
            norms = ((norm_of(self._source.array(key)), key) for key in self._of_size[size])
            self._norms[size] = sorted(each for each in norms if not math.isnan(each[0]))
        ordered, found = self._norms[size], set[str]()
        for norm in map(norm_of, blocks):
            start = bisect_left(ordered, norm * (1 - 2 * SAME), key=itemgetter(0))
            end = bisect_right(ordered, norm * (1 + 2 * SAME), key=itemgetter(0))
            found |= {key for _, key in ordered[start:end]}
        return self._in_order(found)

    def equal_to(self, value: Any, size: int) -> list[str]:
        """Returns those of so many elements that have a value everywhere."""
        if size not in self._constants:
            self._constants[size] = defaultdict(list)
            for key in self._of_size[size]:
                if is_constant(array := self._source.array(key)):
                    self._constants[size][complex(array.flat[0])].append(key)
        return self._in_order(self._constants[size].get(complex(value), ()))

    def named(self, names: Iterable[str], size: int) -> list[str]:
        """Returns those of some names, as `spelt` spells them; none where one is missing, or has another size."""
        found = [self._spelt.get(name) for name in names]
        here = [key for key in found if key is not None and key in self._free and self._size(key) == size]
        return here if len(here) == len(found) else []

    def beside(self, parts: Sequence[str], size: int) -> list[str]:
        """Returns those in the layers of some parts, one in each, that are parts of so many elements; else none.

        Args:
            parts: The parts of another parameter.
            size: The number of elements of all parts together.
        """
        found = [self._among(size // len(parts), [*words_of(part)[:-1], None]) for part in parts]
        return [key for each in found for key in each] if all(len(each) == 1 for each in found) else []

    def like(self, names: Sequence[str], size: int) -> str | None:
        """Returns the only other one of so many elements whose name differs from some in the word in which they do."""
        columns = list(zip(*map(words_of, names), strict=False))
        if len({len(words_of(name)) for name in names}) > 1:
            return None
        pattern = [column[0] if len({*column}) == 1 else None for column in columns]
        found = [key for key in self._among(size, pattern) if key not in names]
        return found[0] if pattern.count(None) == len(found) == 1 else None

    def _among(self, size: int, pattern: Sequence[str | None]) -> list[str]:
        """Returns those of so many elements whose words are those of a pattern; None stands for any word."""
        named = ((key, words_of(key)) for key in self._of_size.get(size, ()) if key in self._free)
        return [
            key
            for key, words in named
            if len(words) == len(pattern) and all(word in (None, own) for word, own in zip(pattern, words, strict=True))
        ]

    def remove(self, key: str) -> None:
        """Leaves out one that has been found to be a part."""
        del self._free[key]

    def _in_order(self, keys: Iterable[str]) -> list[str]:
        return sorted((key for key in keys if key in self._free), key=self._free.__getitem__)

    def _size(self, key: str) -> int:
        return math.prod(self._source.entry(key).shape)


class SolvedNames:
    """`SolvedNames` tell, from the names of packed tensors and of their parts, those of the parts of another one."""

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


def shifted(parts: Sequence[str], like: str, key: str) -> tuple[str, ...]:
    """Returns what the parts of a tensor would be called, by those of another one that has another number in its name.

    Args:
        parts: The parts of the other tensor.
        like: The other tensor.
        key: The tensor.

    Returns:
        The names with that number moved by as much as it is in the tensors' names; empty where they differ by more.
    """
    (words, numbers), (others, moved) = _numbered(like), _numbered(key)
    steps = {end - start for start, end in zip(numbers, moved, strict=False) if start != end}
    if words != others or len(numbers) != len(moved) or len(steps) != 1:
        return ()
    (step,) = steps
    split = [_numbered(part) for part in parts]
    places = zip(*(own for _, own in split), strict=False)
    # The number that all parts have in the same place is that of the block, and not that of the part.
    place = next((place for place, own in enumerate(places) if len(set(own)) == 1), None)
    if place is None:
        return ()
    return tuple(spelt(_joined(around, own, place, step)) for around, own in split)


def _numbered(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns what is around the numbers in a name, and the numbers."""
    return tuple(_NUMBER.split(name)), tuple(map(int, _NUMBER.findall(name)))


def _joined(around: Sequence[str], numbers: Sequence[int], place: int, step: int) -> str:
    """Returns a name with one of its numbers moved."""
    moved = [str(number + step if each == place else number) for each, number in enumerate(numbers)]
    return "".join(chain.from_iterable(zip_longest(around, moved, fillvalue="")))


def are_of_one_layer(one: str, other: str) -> bool:
    """Returns whether two packed parameters are the kernel and the bias of one layer, by their names."""
    (*scope, last), (*other_scope, other_last) = words_of(one), words_of(other)
    return scope == other_scope and _stem(last) == _stem(other_last)


def _stem(word: str) -> tuple[str, ...]:
    return tuple(part for part in word.lower().split("_") if part not in _KINDS)


def words_of(key: str) -> tuple[str, ...]:
    """Returns the words of a tensor's name, which frameworks separate by dots or slashes."""
    return tuple(split_key(key)[1].replace(".", "/").split("/"))


def spelt(key: str) -> str:
    """Returns a key with its words separated by slashes."""
    return key_of(split_key(key)[0], "/".join(words_of(key)))


def is_constant(array: Array) -> bool:
    """Returns whether all elements are equal."""
    return array.size > 0 and bool((array == array.flat[0]).all())


def _common_end(names: Sequence[Sequence[str]]) -> int:
    """Returns the number of words that all names end with."""
    columns = zip(*(reversed(name) for name in names), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
