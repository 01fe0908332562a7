"""Own formats: how a framework reads files that only a module of the user's makes sense of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Described(Protocol):
    """A tensor that has not been read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> Any:
        """Its dtype, or the name of it."""
        ...


class OwnFormat(Protocol):
    """A module and a checkpoint of its framework's own format."""

    @property
    def built(self) -> bool:
        """Whether the module has made its variables."""
        ...

    @property
    def exact(self) -> bool:
        """Whether numbers of another width do not do."""
        ...

    def layouts(self) -> tuple[Mapping[str, Described], Mapping[str, Described] | None]:
        """What a file of this module holds by path, in the file's order, and what this file does.

        Returns:
            Both; None for the latter where it has an order and no names.
        """
        ...

    def restore(self) -> Any:
        """The module with the file's values, perhaps another object."""
        ...
