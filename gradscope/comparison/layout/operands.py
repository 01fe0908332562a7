"""Sides: the two tensors of a pair, wherever their elements are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from gradscope.arrays.blocks import Array, blocks, stretch_of
from gradscope.comparison.layout.recipes import Recipe
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.errors import UsageError
from gradscope.naming import printable
from gradscope.protocols import implements


class Side(Protocol):
    """One tensor of a pair."""

    @property
    def entry(self) -> Entry:
        """What its dump says about it."""
        ...

    @property
    def has_tensor(self) -> bool:
        """Whether its elements are there, and not its statistics only."""
        ...

    def chunks(self) -> Iterator[Array]:
        """Its elements in C order, in pieces, each valid until the next is drawn."""
        ...

    def stretch(self, start: int, stop: int) -> Array:
        """Its elements from `start` to before `stop` in C order; whether they are damaged, `chunks` tells."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSide:
    """A tensor as it lies in a dump; `key` is the entry that owns the values, not an alias of it."""

    source: DumpSource
    key: str

    @property
    @implements(Side)
    def entry(self) -> Entry:
        return self.source.entry(self.key)

    @property
    @implements(Side)
    def has_tensor(self) -> bool:
        return self.source.has_tensor(self.key)

    @implements(Side)
    def chunks(self) -> Iterator[Array]:
        return self.source.chunks(self.key, reused=True)

    @implements(Side)
    def stretch(self, start: int, stop: int) -> Array:
        return self.source.stretch(self.key, start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSide:
    """A tensor that was made of others, in memory, without statistics, which are those of the others.

    `array` is None where they have no elements to make it of.
    """

    entry: Entry
    array: Array | None

    @property
    @implements(Side)
    def has_tensor(self) -> bool:
        return self.array is not None

    @implements(Side)
    def chunks(self) -> Iterator[Array]:
        return iter(()) if self.array is None else blocks(self.array)

    @implements(Side)
    def stretch(self, start: int, stop: int) -> Array:
        if self.array is None:
            raise UsageError(f"there are no elements of {printable(self.entry.name)}")
        return stretch_of(self.array, start, stop)


def counterpart(source: DumpSource, recipe: Recipe) -> Side:
    """What a recipe makes of a candidate's tensors.

    Raises:
        UsageError: It cannot be made.
        DumpError: A tensor is damaged.
    """
    if recipe.plain:
        return StoredSide(source=source, key=source.resolve(recipe.keys[0]))
    entry = source.entry(source.resolve(recipe.keys[0]))
    if not all(source.has_tensor(key) for key in recipe.keys):
        return MadeSide(entry=replace(entry, stats={}), array=None)
    array = recipe.array(source)
    return MadeSide(entry=replace(entry, shape=array.shape, stats={}), array=array)
