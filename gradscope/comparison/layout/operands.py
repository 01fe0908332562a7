"""Operands are the two tensors of a pair, read from a dump or made by a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gradscope.arrays.blocks import Array, blocks, stretch_of
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.comparison.layout.joined_statistics import joined_statistics
from gradscope.comparison.layout.recipes import Recipe
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.errors import UsageError
from gradscope.naming import printable
from gradscope.protocols import implements


class Operand(Protocol):
    """Operand is one tensor of a pair."""

    @property
    def entry(self) -> Entry:
        """The tensor's entry in its dump."""
        ...

    @property
    def has_tensor(self) -> bool:
        """Whether the elements are available, and not the statistics only."""
        ...

    def chunks(self) -> Iterator[Array]:
        """Returns the elements in C order in chunks, each valid until the next is requested."""
        ...

    def elements(self) -> Array:
        """Returns all elements in C order, in an array of one axis."""
        ...

    def stretch(self, start: int, stop: int) -> Array:
        """Returns the elements from `start` to before `stop` in C order, without a check of the checksum."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOperand:
    """StoredOperand reads a tensor from a dump; `key` is the entry that owns the values, not an alias of it."""

    source: DumpSource
    key: str

    @property
    @implements(Operand)
    def entry(self) -> Entry:
        return self.source.entry(self.key)

    @property
    @implements(Operand)
    def has_tensor(self) -> bool:
        return self.source.has_tensor(self.key)

    @implements(Operand)
    def chunks(self) -> Iterator[Array]:
        return self.source.chunks(self.key, reused=True)

    @implements(Operand)
    def elements(self) -> Array:
        return self.source.array(self.key).reshape(-1)

    @implements(Operand)
    def stretch(self, start: int, stop: int) -> Array:
        return self.source.stretch(self.key, start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOperand:
    """DerivedOperand holds a tensor that a recipe made of others; `array` is None where those have no elements."""

    # Its statistics are those of its elements, whatever their order; not those in the dump where it has others.
    entry: Entry
    array: Array | None

    @property
    @implements(Operand)
    def has_tensor(self) -> bool:
        return self.array is not None

    @implements(Operand)
    def chunks(self) -> Iterator[Array]:
        return iter(()) if self.array is None else blocks(self.array)

    @implements(Operand)
    def elements(self) -> Array:
        return self._known().reshape(-1)

    @implements(Operand)
    def stretch(self, start: int, stop: int) -> Array:
        return stretch_of(self._known(), start, stop)

    def _known(self) -> Array:
        if self.array is None:
            raise UsageError(f"there are no elements of {printable(self.entry.name)}")
        return self.array


def counterpart(source: DumpSource, recipe: Recipe) -> Operand:
    """Returns what a recipe makes of a dump's tensors.

    Raises:
        UsageError: The steps of the recipe do not fit the shapes.
        DumpError: A tensor is damaged.
    """
    if recipe.plain:
        return StoredOperand(source=source, key=source.resolve(recipe.keys[0]))
    entry = source.entry(source.resolve(recipe.keys[0]))
    parts = [_array(source, key) for key in recipe.keys]
    arrays = [each for each in parts if each is not None]
    if len(arrays) < len(parts) or not any(map(source.has_tensor, recipe.keys)):
        return DerivedOperand(entry=_rearranged(source, recipe) or replace(entry, stats={}), array=None)
    array = recipe.made_of(arrays)
    return DerivedOperand(entry=replace(entry, shape=array.shape, stats={}, absent=None), array=array)


def _rearranged(source: DumpSource, recipe: Recipe) -> Entry | None:
    """Returns the entry of what has all elements of some tensors in another order; None where it has others."""
    entries = [source.entry(source.resolve(key)) for key in recipe.keys]
    if not recipe.only_moves or any(entry.absent for entry in entries):
        return None
    made = recipe.made_of([np.broadcast_to(np.uint8(0), entry.shape) for entry in entries])
    sizes = [math.prod(entry.shape) for entry in entries]
    if made.size != sum(sizes):
        return None
    stats = joined_statistics([(entry.stats, size) for entry, size in zip(entries, sizes, strict=True)])
    return replace(entries[0], shape=made.shape, stats=stats)


def _array(source: DumpSource, key: str) -> Array | None:
    """Returns a tensor; zeros for a gradient that does not arrive, and None where it is not known."""
    if source.has_tensor(key):
        return source.array(key)
    entry = source.entry(source.resolve(key))
    return np.zeros(entry.shape, as_numpy_dtype(entry.dtype)) if entry.absent == "disconnected" else None
