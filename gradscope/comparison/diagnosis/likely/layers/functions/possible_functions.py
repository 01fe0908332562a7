"""`PossibleFunctions` are what functions of one kind make of the same values in both programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from gradscope.arrays.blocks import Array


class Both(NamedTuple):
    """Both has a value of both programs in one layout.

    Attributes:
        own: That of the own program.
        other: That of the other one.
    """

    own: Array
    other: Array


class PossibleFunctions(Protocol):
    """PossibleFunctions yields functions of the same values of either program."""

    @property
    def argument(self) -> Both:
        """A value that has the shape of what is made."""
        ...

    def functions(self, *, of_own: bool) -> Iterator[tuple[str, Array]]:
        """Yields functions of the values, by their words.

        Args:
            of_own: Whether they are those of the own program, or else of the other one.
        """
        ...

    def phrase(self, words: str) -> str:
        """Returns the words of a function, with what it is of."""
        ...
