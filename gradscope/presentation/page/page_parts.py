"""A page is what is shown in a browser, before it is HTML: what is read without JavaScript, and what scripts show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.render.document import Document, Note
from gradscope.presentation.tables.table import Table

#: What a page is of, which decides what it shows.
PageKind: TypeAlias = Literal["dump", "comparison", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNotes:
    """`PageNotes` are notes under one title, each perhaps a link to a tensor, a step, or both.

    Attributes:
        title: The heading; "" for none.
        notes: The notes.
        keys: The tensor that each is about, by position; "" for none.
        steps: The step that each is about, by position; None for none.
    """

    title: str = ""
    notes: Sequence[Note]
    keys: Sequence[str] = ()
    steps: Sequence[int | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A `Page` is one page.

    Attributes:
        kind: What it is of.
        title: Its title.
        summary: What is read without JavaScript.
        content: What the scripts show, as the names and values of a JSON object, each made when it is written.
        packed: Numbers that the content refers to by offset.
        left_out: Sentences about what is not on the page, so that it stays small.
    """

    kind: PageKind
    title: str
    summary: Sequence[PageNotes | Table]
    content: Iterable[tuple[str, Streamed]] = ()
    packed: bytes = b""
    left_out: tuple[str, ...] = ()


def document_parts(document: Document, keys: Sequence[str], *, title: str = "") -> Iterator[PageNotes | Table]:
    """Yields the parts of a document as those of a page.

    Args:
        document: The document.
        keys: The tensor that the first note, the verdict, is about; empty for none.
        title: The heading of the first part, where it has none.
    """
    for at, block in enumerate(document):
        if isinstance(block, Table):
            yield block
        else:
            notes = [note for note in block.notes if note.label != "more"]  # it is about options of the command line
            yield PageNotes(title=block.title or ("" if at else title), notes=notes, keys=() if at else keys)


#: Returns the page at a level of detail: 0 has everything; each further one has less, and says so.
PageMaker: TypeAlias = Callable[[int], Page]
