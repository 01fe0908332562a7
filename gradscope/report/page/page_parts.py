"""A page is what is shown in a browser, before it is HTML: what is read without JavaScript, and what scripts show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradscope.dump.record import Json
from gradscope.report.render.document import Note
from gradscope.report.tables.table import Table

#: What a page is of, which decides what it shows.
PageKind: TypeAlias = Literal["dump", "comparison", "run"]


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
