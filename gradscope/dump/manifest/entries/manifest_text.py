"""Reads the text of a long manifest part by part, so that its lists are never parsed at once.

A dump of 70,000 tensors has 13 million values, most of them counts of histograms. Parsed at once, they take half a
gigabyte, and those of a smaller hostile file more. Of a part, only what is made of it is kept. What is kept, and what
the rest of the manifest will take, is bounded.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

from gradscope.dump.manifest.entries.compiled_entries import compiled_entries, replace
from gradscope.dump.manifest.entries.entry_fields import read_entry
from gradscope.dump.manifest.entries.held_bytes import held_bytes
from gradscope.dump.manifest.entries.list_parts import ListLayout, Part, read_parts
from gradscope.dump.manifest.entries.packed_statistics import Packer, Values
from gradscope.dump.manifest.entries.packed_values import HISTOGRAM, EqualTexts, Histograms
from gradscope.dump.manifest.entries.released_text import Text
from gradscope.dump.manifest.json_fields import LARGEST, Fields
from gradscope.dump.manifest.json_scan import MemoryBudget, open_brackets, parsed_bytes, require_small
from gradscope.dump.manifest.json_text import loads
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json

#: Bytes of the text from which on it is read in parts.
_LONG: Final = 1 << 20

#: The memory that a manifest may take, besides half more than the length of its text; and that a short one may take
#: together with its text: entries of few statistics take four times theirs.
_MOST_BYTES: Final = 72 << 20
_MOST_IN_ALL: Final = 192 << 20

#: The texts of a list's items that are those of other items, too.
_REPEATED: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("parent", "source", "primitive"),
    "missing": ("family", "detail"),
    "causes": ("family", "why"),
}

#: Bytes that an entry takes, with its place in a dictionary by key, but for its texts, axes and statistics; what the
#: location of its tensor takes; and one axis or index.
_ENTRY_BYTES: Final = 440
_STORED_BYTES: Final = 160
_AXIS_BYTES: Final = 40

#: The long lists of a manifest, and how our writer begins an item of each. The ledger's is in another object.
_LISTS: Final = re.compile(
    rb'(?<!\\)"(?:(entries|layers|causes)|ledger"\s*:\s*\{\s*(?:"captured"\s*:\s*\d+\s*,\s*)?"(missing))"\s*:\s*\['
)
_LAYOUTS: Final = {
    "entries": ListLayout(b',{"family":', b"]}"),
    "layers": ListLayout(b',{"path":', b"]}"),
    "causes": ListLayout(b',{"family":', b"]}"),
    "missing": ListLayout(b',{"name":', b"]}}"),
}
#: How many lists of these names are looked at that are elsewhere.
_MOST_STRAY: Final = 64

#: Makes an item of a list of its JSON value and its position.
ItemReader: TypeAlias = Callable[[Json, int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadText:
    """`ReadText` has what a manifest's text has: items of its long lists, and the JSON value of all else.

    Attributes:
        rest: The value, in which these lists are empty; short text has all in it.
        lists: The items of each list, by its name.
    """

    rest: Json
    lists: Mapping[str, tuple[Any, ...]]


def read_text(text: Text, readers: Mapping[str, ItemReader], *, histograms: bool = True, depth: int = 1) -> ReadText:
    """Parses the JSON text of a manifest, or of an object that has one.

    Args:
        text: The text, of which long lists are given back.
        readers: What makes the items of `layers` and `causes`, and of `missing` in the ledger.
        histograms: Whether the statistics need their histograms; short text has them anyway.
        depth: How many objects the list of entries is in.

    Raises:
        DumpError: The text is not strict JSON, has an item that is none, or more values than the limits.
    """
    if len(text) < _LONG:
        return ReadText(rest=loads(bytes(text)), lists={})
    require_small(text)
    budget = MemoryBudget(max(_MOST_BYTES + len(text) * 3 // 2, _MOST_IN_ALL - len(text)))
    own = {name: _ListReader(name, reader, budget) for name, reader in readers.items()}
    entries = _EntryReader(budget, histograms=histograms)
    cuts = _without_lists(text, depth, {**{name: each.read for name, each in own.items()}, "entries": entries.read})
    rest = b"".join(text[start:end] for start, end in cuts)
    budget.spend(parsed_bytes(rest))
    lists = {**{name: tuple(each.items) for name, each in own.items()}, "entries": entries.entries()}
    return ReadText(rest=loads(rest, place=lambda at: _place(cuts, at)), lists=lists)


def _without_lists(text: Text, depth: int, readers: Mapping[str, Callable[[Part], None]]) -> list[tuple[int, int]]:
    """Reads the long lists of a text, and returns the stretches of the text that are left."""
    cuts: list[tuple[int, int]] = []
    start = seen = opened = stray = 0
    while stray < _MOST_STRAY and (found := _LISTS.search(text, seen)) is not None:
        opened += open_brackets(text[seen : found.end()])
        seen = found.end()
        inner = found[2] is not None
        name = (found[2] if inner else found[1]).decode()
        if opened == depth + (2 if inner else 1) and name in readers:
            cuts.append((start, seen))
            start = seen = read_parts(text, seen, _LAYOUTS[name], readers[name], what=name)
        else:
            stray += 1
    return [*cuts, (start, len(text))]


def _place(cuts: Sequence[tuple[int, int]], at: int) -> int:
    """Returns where a byte of what is left is in the complete text."""
    for start, end in cuts[:-1]:
        if at < end - start:
            return start + at
        at -= end - start
    return cuts[-1][0] + at


class _ListReader:
    """_ListReader makes the items of a list."""

    def __init__(self, name: str, make: ItemReader, budget: MemoryBudget) -> None:
        self.items: list[object] = []
        self._repeated = _REPEATED.get(name, ())
        self._make = make
        self._budget = budget

    def read(self, part: Part) -> None:
        """Makes the items of a part of the list."""
        values = part.values()
        found = [self._make(cast("Json", value), number) for number, value in enumerate(values, len(self.items))]
        _share(found, self._repeated)
        self._budget.spend(held_bytes(found))
        self.items += found


class _EntryReader:
    """_EntryReader makes entries, whose statistics it packs."""

    def __init__(self, budget: MemoryBudget, *, histograms: bool) -> None:
        self._budget = budget
        self._histograms = histograms
        self._packer = Packer(budget.spend)
        self._entries: list[Entry] = []

    def read(self, part: Part) -> None:
        """Makes the entries of a part of the list."""
        found = compiled_entries(part.text, histograms=self._histograms)
        self._keep(self._parsed(part) if found is None else found)

    def entries(self) -> tuple[Entry, ...]:
        """Returns all entries that were read.

        Raises:
            DumpError: A statistic is an integer larger than a size can be.
        """
        if not all(map(_are_small, self._packer.columns())):
            for number, entry in enumerate(self._entries):
                Fields({"stats": dict(entry.stats)}, f"entry {number}").statistics("stats")
        return tuple(self._entries)

    def _parsed(self, part: Part) -> list[Entry]:
        values = part.values()
        found = [read_entry(cast("Json", value), number) for number, value in enumerate(values, len(self._entries))]
        if not self._histograms:
            kept = [{name: value for name, value in each.stats.items() if name != HISTOGRAM} for each in found]
            replace(found, "stats", kept)
        return found

    def _keep(self, found: list[Entry]) -> None:
        replace(found, "stats", self._packer.pack([each.stats for each in found]))
        _share(found, ("family", "dtype", "shape"))
        _share([each.site for each in found], ("source", "layer", "primitive"))
        _share([each.stored for each in found if each.stored is not None], ("dtype",))
        self._budget.spend(_size_bytes(found))
        self._entries += found


def _share(values: Sequence[object], names: Iterable[str]) -> None:
    """Makes equal attributes of some values one object: most tensors have the family, dtype and shape of others."""
    for name in names:
        own = [*map(attrgetter(name), values)]
        # Any number of shapes may have one hash. Texts are hashed with a secret.
        keys = [*map(str, own)] if name == "shape" else own
        known = dict(zip(keys, own, strict=True))
        if len(known) < len(own):
            replace(values, name, map(known.__getitem__, keys))


def _size_bytes(entries: Sequence[Entry]) -> int:
    """Returns about how many bytes some entries take but for their statistics."""
    sites = [each.site for each in entries]
    stored = [each.stored for each in entries if each.stored is not None]
    texts = {
        *chain.from_iterable(map(attrgetter("family", "name", "dtype", "alias_of"), entries)),
        *chain.from_iterable(map(attrgetter("source", "primitive", "layer", "of"), sites)),
        *map(attrgetter("member"), stored),
    }
    shapes = {id(shape): shape for shape in map(attrgetter("shape"), entries)}
    axes = sum(map(len, shapes.values())) + sum(map(len, map(attrgetter("iteration"), sites)))
    objects = _ENTRY_BYTES * len(entries) + _STORED_BYTES * len(stored)
    return objects + sum(map(sys.getsizeof, texts)) + _AXIS_BYTES * axes


def _are_small(column: Values | ValuesView[Json]) -> bool:
    """Returns whether no statistic is an integer larger than a size can be."""
    if isinstance(column, EqualTexts):
        return True
    if isinstance(column, array):
        return column.typecode != "q" or min(column, default=0) >= -LARGEST  # no array has a larger one
    values = column.odd.values() if isinstance(column, Histograms) else column
    numbers = [value for value in values if type(value) is int]
    return min(numbers, default=0) >= -LARGEST and max(numbers, default=0) <= LARGEST
