"""Operands: the two tensors of a pair, read from a dump or made by a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from gradscope.arrays.blocks import Array, blocks, stretch_of
from gradscope.comparison.layout.recipes import Recipe
from gradscope.dump.interfaces import DumpSource, has_elements
from gradscope.dump.manifest.manifest import Entry
from gradscope.errors import UsageError
from gradscope.naming import printable


class Operand(Protocol):
    """Operand is one tensor of a pair."""

    @property
    def entry(self) -> Entry:
        """The tensor's entry in its dump."""
        ...

    @property
    def has_elements(self) -> bool:
        """Whether the elements are available, and not the statistics only."""
        ...

    def chunks(self) -> Iterator[Array]:
        """Returns the elements in C order in chunks, each valid until the next is requested."""
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
    def entry(self) -> Entry:
        """See `Operand`."""
        return self.source.entry(self.key)

    @property
    def has_elements(self) -> bool:
        """See `Operand`."""
        return has_elements(self.source, self.key)

    def chunks(self) -> Iterator[Array]:
        """See `Operand`."""
        return self.source.chunks(self.key, reused=True)

    def stretch(self, start: int, stop: int) -> Array:
        """See `Operand`."""
        return self.source.stretch(self.key, start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOperand:
    """DerivedOperand holds a tensor that a recipe made of others; `array` is None where those have no elements."""

    # Without statistics: those in the dump are of the tensors that it is made of.
    entry: Entry
    array: Array | None

    @property
    def has_elements(self) -> bool:
        """See `Operand`."""
        return self.array is not None

    def chunks(self) -> Iterator[Array]:
        """See `Operand`."""
        return iter(()) if self.array is None else blocks(self.array)

    def stretch(self, start: int, stop: int) -> Array:
        """See `Operand`."""
        if self.array is None:
            raise UsageError(f"there are no elements of {printable(self.entry.name)}")
        return stretch_of(self.array, start, stop)


def counterpart(source: DumpSource, recipe: Recipe) -> Operand:
    """Returns what a recipe makes of a dump's tensors.

    Raises:
        UsageError: The steps of the recipe do not fit the shapes.
        DumpError: A tensor is damaged.
    """
    if recipe.plain:
        return StoredOperand(source=source, key=source.resolve(recipe.keys[0]))
    entry = source.entry(source.resolve(recipe.keys[0]))
    if not all(has_elements(source, key) for key in recipe.keys):
        return DerivedOperand(entry=replace(entry, stats={}), array=None)
    array = recipe.array(source)
    return DerivedOperand(entry=replace(entry, shape=array.shape, stats={}), array=array)
