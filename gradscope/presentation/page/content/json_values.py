"""Values of content are keys by number, numbers of six digits, and texts of bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gradscope.dump.record import Json
from gradscope.naming.printable import without_middle

#: The longest name or message in content, in characters; a longer one loses its middle.
LONGEST_TEXT: Final = 2_000
#: Significant digits of numbers in content; people see three.
_DIGITS: Final = 6


class Keys:
    """`Keys` number the keys of tensors, so that content has each of them once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, key: str) -> int:
        """Returns the number of a key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def to_json(self) -> list[Json]:
        """Returns the keys in the order of their numbers."""
        return [shortened(key) for key in self._numbers]


def lists(items: Iterable[Iterable[Json]]) -> Iterator[Json]:
    """Yields each of some items as a list."""
    return (list(each) for each in items)


def shortened(text: str) -> str:
    """Returns a text of at most `LONGEST_TEXT` characters, without its middle where it is longer."""
    return without_middle(text, LONGEST_TEXT)


def rounded(value: float) -> Json:
    """Returns a number with six significant digits; what is not finite as the words that JSON in a dump has."""
    if isinstance(value, int):
        return value
    if value != value:  # noqa: PLR0124 - NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
