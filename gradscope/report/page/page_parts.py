"""A page is what is shown in a browser, before it is HTML: what is read without JavaScript, and what scripts show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gradscope.dump.record import Json
from gradscope.report.render.document import Note
from gradscope.report.tables.table import Table

#: What a page is of, which decides what it shows.
PageKind: TypeAlias = Literal["dump", "comparison", "run"]

#: The longest name or message in content, in characters; a longer one loses its middle.
LONGEST_TEXT: Final = 2_000
#: Significant digits of numbers in content; people see three.
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNotes:
    """`PageNotes` are notes under one title, each perhaps a link to a tensor.

    Attributes:
        title: The heading; "" for none.
        notes: The notes.
        keys: The tensor that each is about, by position; "" for none.
    """

    title: str = ""
    notes: Sequence[Note]
    keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A `Page` is one page.

    Attributes:
        kind: What it is of.
        title: Its title.
        summary: What is read without JavaScript.
        content: What the scripts show, as JSON.
        packed: Numbers that the content refers to by offset.
        left_out: Sentences about what is not on the page, so that it stays small.
    """

    kind: PageKind
    title: str
    summary: Sequence[PageNotes | Table]
    content: Mapping[str, Json] = field(default_factory=dict[str, Json])
    packed: bytes = b""
    left_out: tuple[str, ...] = ()


#: Returns the page at a level of detail: 0 has everything; each further one has less, and says so.
PageMaker: TypeAlias = Callable[[int], Page]


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


def shortened(text: str) -> str:
    """Returns a text of at most `LONGEST_TEXT` characters, without its middle where it is longer."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters ... {text[-half:]}"


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
