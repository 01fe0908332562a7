"""Finds the tensors that may be parts of a packed one: by number of elements, largest element and norm, and by names.

Each tensor is read once for its largest element, however many packed tensors there are; a packed tensor reads those
alone whose norms are its parts'.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from operator import itemgetter
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.inference.equal_parts import norm_of, rounding, same
from gradscope.comparison.pairing.values.parts.part_names import spelt, words_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import gradient_key, key_of, split_key

#: The largest number of parts of one tensor.
_MOST_PARTS: Final = 128


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
        self._largest: dict[int, tuple[list[tuple[float, str]], float]] = {}
        self._norm = cache(lambda key: norm_of(source.array(key)))
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
        """Returns those of the norm of one of some blocks of equal size, as far as a part's may differ from it.

        The largest elements rule out most of them, for which no norm is computed.
        """
        size = blocks[0].size
        if size not in self._largest:
            each = ((_largest(self._source.array(key)), key) for key in self._of_size[size])
            dtypes = {self._source.entry(key).dtype for key in self._of_size[size]}
            self._largest[size] = sorted(one for one in each if not math.isnan(one[0])), max(map(rounding, dtypes))
        (ordered, rounded), found = self._largest[size], set[str]()
        limit = 2 * max(same(*blocks), rounded)
        for block in blocks:
            top = _largest(block)
            start = bisect_left(ordered, top * (1 - limit), key=itemgetter(0))
            end = bisect_right(ordered, top * (1 + limit), key=itemgetter(0))
            if start < end:
                norm = norm_of(block)
                found |= {key for _, key in ordered[start:end] if abs(self._norm(key) - norm) <= limit * norm}
        return self._in_order(found)

    def arrays(self, named: Sequence[str], blocks: Sequence[Array]) -> dict[str, Array]:
        """Returns the tensors that may be the blocks: those of some names, or without any, of the right norms.

        Where they are too few, none is read.
        """
        keys = named or self.near(blocks)
        return {key: self._source.array(key) for key in keys} if len(keys) >= len(blocks) else {}

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


def _largest(array: Array) -> float:
    """Returns the largest absolute value of an array."""
    if array.dtype.kind == "c":
        return float(np.abs(array).max())
    return max(float(array.max()), -float(array.min()))


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
