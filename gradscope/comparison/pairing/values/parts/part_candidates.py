"""Finds the tensors that may be parts of a packed one: by the number of elements, by their norm, and by their names.

Each tensor is read once for its norm, however many packed tensors there are; a packed tensor reads those of its parts'
norms alone.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, product, takewhile, zip_longest
from operator import itemgetter
from typing import Any, Final, TypeAlias

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.inference.equal_parts import norm_of, rounding, same
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import gradient_key, key_of, split_key
from gradscope.naming.numbering import NUMBER

#: The largest number of parts of one tensor.
_MOST_PARTS: Final = 128

#: What the kernels and the biases of layers are called.
_KINDS: Final = frozenset({"weight", "kernel", "w", "bias", "b"})

#: The largest number of numbers in a name that move together, as in `block3/norm3`.
_MOST_MOVED: Final = 3

_NUMBER: Final = re.compile(NUMBER)

#: The words around a name's numbers, the places of the numbers that move, and the others with how far these differ.
_Fixed: TypeAlias = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]

#: The place of the number that moves in the names of parts, and these with that number less the one of the tensor.
_Moving: TypeAlias = tuple[int, tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]]


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
        self._constants: dict[int, defaultdict[complex, dict[str, None]]] = {}
        self._value_of: dict[str, complex] = {}
        self._gradients: dict[tuple[complex, int], tuple[dict[str, str], PartCandidates]] = {}
        self._of_pattern: dict[int, defaultdict[tuple[str | None, ...], list[str]]] = {}
        for key in self._free:
            self._of_size[self._size(key)].append(key)
            self._spelt[spelt(key)] = key

    def counts(self, size: int) -> Iterator[int]:
        """Yields the numbers of parts that a tensor of so many elements may have, by the sizes of these tensors."""
        for count in range(2, _MOST_PARTS + 1):
            if size and size % count == 0 and len(self._of_size.get(size // count, ())) >= count:
                yield count

    def of_size(self, size: int) -> list[str]:
        """Returns those of so many elements, in order."""
        return self._in_order(self._of_size.get(size, ()))

    def near(self, blocks: Sequence[Array]) -> list[str]:
        """Returns those of the norm of one of some blocks of equal size, as far as a part's may differ from it."""
        size = blocks[0].size
        if size not in self._norms:
            norms = ((norm_of(self._source.array(key)), key) for key in self._of_size[size])
            self._norms[size] = sorted(each for each in norms if not math.isnan(each[0]))
        ordered, found = self._norms[size], set[str]()
        dtypes = {self._source.entry(key).dtype for key in self._of_size[size]}
        limit = 2 * max(same(*blocks), *map(rounding, dtypes))
        for norm in map(norm_of, blocks):
            start = bisect_left(ordered, norm * (1 - limit), key=itemgetter(0))
            end = bisect_right(ordered, norm * (1 + limit), key=itemgetter(0))
            found |= {key for _, key in ordered[start:end]}
        return self._in_order(found)

    def arrays(self, named: Sequence[str], blocks: Sequence[Array]) -> dict[str, Array]:
        """Returns the tensors that may be the blocks: those of some names, or without any, of the right norms."""
        return {key: self._source.array(key) for key in named or self.near(blocks)}

    def equal_to(self, value: Any, size: int) -> Collection[str]:
        """Returns those of so many elements that have a value everywhere, in order."""
        if size not in self._constants:
            self._constants[size] = defaultdict(dict)
            for key in filter(self._free.__contains__, self._of_size[size]):
                if (constant := constant_of(self._source, key)) is not None:
                    self._value_of[key] = complex(constant)
                    self._constants[size][self._value_of[key]][key] = None
        return self._constants[size].get(complex(value), {}).keys()

    def gradients_of(self, value: Any, size: int) -> tuple[Mapping[str, str], PartCandidates]:
        """Returns the gradients of those that `equal_to` returns: whose each is, and which are left, as candidates."""
        if (kind := (complex(value), size)) not in self._gradients:
            own = {gradient_key(each): each for each in self.equal_to(value, size)}
            kept = {gradient: each for gradient, each in own.items() if self._source.has_tensor(gradient)}
            self._gradients[kind] = kept, PartCandidates(self._source, kept)
        return self._gradients[kind]

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
        found = [self._among(size // len(parts), (*words_of(part)[:-1], None)) for part in parts]
        return [key for each in found for key in each] if all(len(each) == 1 for each in found) else []

    def like(self, names: Sequence[str], size: int) -> str | None:
        """Returns the only other one of so many elements whose name differs from some in the word in which they do.

        Where they differ in several, as in the numbers of a layer and of an expert, it is the one that completes them.
        """
        words = [*map(words_of, names)]
        columns = list(zip(*words, strict=False))
        if len({*map(len, words)}) != 1:
            return None
        pattern = tuple(column[0] if len({*column}) == 1 else None for column in columns)
        if pattern.count(None) > 1:
            return self._completing(words, split_key(names[0])[0], size)
        found = [key for key in self._among(size, pattern) if key not in names]
        return found[0] if len(found) == 1 else None

    def _completing(self, words: Sequence[Sequence[str]], family: str, size: int) -> str | None:
        """Returns the one whose words are the only combination of those in their places that some names lack."""
        choices = [{*column} for column in zip(*words, strict=True)]
        if math.prod(map(len, choices)) != len(words) + 1:
            return None
        (rest,) = {*product(*choices)} - {*map(tuple, words)}
        return next(iter(self.named([key_of(family, "/".join(rest))], size)), None)

    def _among(self, size: int, pattern: tuple[str | None, ...]) -> list[str]:
        """Returns those of so many elements whose words are those of a pattern, in which one None is any word."""
        if size not in self._of_pattern:
            self._of_pattern[size] = defaultdict(list)
            for key in self._of_size.get(size, ()):
                words = words_of(key)
                for place in range(len(words)):
                    self._of_pattern[size][(*words[:place], None, *words[place + 1 :])].append(key)
        return [key for key in self._of_pattern[size].get(pattern, ()) if key in self._free]

    def remove(self, key: str) -> None:
        """Leaves out one that has been found to be a part."""
        del self._free[key]
        if key in self._value_of:
            value, size = self._value_of[key], self._size(key)
            del self._constants[size][value][key]
            if (value, size) in self._gradients:
                own, gradients = self._gradients[value, size]
                if gradient_key(key) in own:
                    gradients.remove(gradient_key(key))

    def _in_order(self, keys: Iterable[str]) -> list[str]:
        return sorted((key for key in keys if key in self._free), key=self._free.__getitem__)

    def _size(self, key: str) -> int:
        return math.prod(self._source.entry(key).shape)


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


def constant_of(source: DumpSource, key: str) -> Any | None:
    """Returns the value that all elements of a tensor have; None where they differ, or where there are none.

    The tensor is read in chunks, up to the first one that has another value.
    """
    value = None
    for chunk in source.chunks(key, reused=True):
        if not chunk.size:
            continue
        value = chunk.flat[0] if value is None else value
        if not (chunk == value).all():
            return None
    return value


def _common_end(names: Sequence[Sequence[str]]) -> int:
    """Returns the number of words that all names end with."""
    columns = zip(*(reversed(name) for name in names), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
