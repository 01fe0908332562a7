"""Own formats are the interface by which a framework reads files that need the user's module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Described(Protocol):
    """A `Described` tensor has a shape and a dtype, and has not been read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        ...

    @property
    def dtype(self) -> Any:
        """The tensor's dtype, or the dtype's name."""
        ...


class OwnFormat(Protocol):
    """An `OwnFormat` is a module and a checkpoint of its framework's own format."""

    @property
    def built(self) -> bool:
        """True where the module has created its variables."""
        ...

    @property
    def exact(self) -> bool:
        """True where numbers must have the same width."""
        ...

    def layouts(self) -> tuple[Mapping[str, Described], Mapping[str, Described] | None]:
        """Returns the tensors by path that a file of this module has, in the file's order, and those of this file.

        Returns:
            Both; None for the latter where the file has an order and no names.
        """
        ...

    def hint(self, saved: int) -> str | None:
        """Returns what to do about a file that does not fit; None where nothing is known.

        Args:
            saved: The number of tensors in the file.
        """
        ...

    def restore(self) -> Any:
        """Returns the module with the file's values, perhaps another object."""
        ...
