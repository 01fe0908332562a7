"""A document is the result of a command before it has a format: tables, and notes with a label each.

`lay_out_document` writes one as text, for a terminal or a pipe; `markdown` writes one as Markdown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rich.text import Text

from gradscope.presentation.render.screen import DIM, TITLE, Screen, pad, widest
from gradscope.presentation.render.text_layout import lay_out
from gradscope.presentation.tables.table import Table

_GAP: Final = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A `Note` is one sentence with a label.

    Attributes:
        label: A word or two, such as the name of a finding or of a fact.
        text: The sentence.
        style: The style of the label.
    """

    label: str
    text: str
    style: str = DIM


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """`Notes` are notes under one title.

    Attributes:
        title: The line above them; "" for none.
        notes: The notes.
        at_most: The number of notes of one label that a terminal shows; the others are counted. None for all.
    """

    title: str = ""
    notes: tuple[Note, ...]
    at_most: int | None = None


Document: TypeAlias = Sequence[Table | Notes]


def lay_out_document(document: Document, screen: Screen) -> Text:
    """Returns a document as text.

    Args:
        document: The document; `Notes` without a note are left out.
        screen: Where the text is shown.

    Returns:
        Lines, each with its line feed, and an empty one between blocks. They fit the screen and must not be wrapped
            again.
    """
    blocks = [lay_out(each, screen) if isinstance(each, Table) else _lay_out_notes(each, screen) for each in document]
    return Text("\n").join(block for block in blocks if block)


def fitted(
    document: Callable[[int], Document], screen: Screen, *, most: int, fewest: int, lines: int | None = None
) -> Document:
    """Returns a document of variable length in as many lines as an overview has.

    Args:
        document: Returns the document for a number, such as the lines of one of its tables.
        screen: Where it is shown.
        most: The largest number.
        fewest: The smallest; its document may be longer.
        lines: The most lines; None for those of an overview.

    Returns:
        The document for the largest number with which it is short enough.
    """
    limit = screen.overview_lines if lines is None else lines
    number = most
    while (excess := lay_out_document(made := document(number), screen).plain.count("\n") - limit) > 0:
        if number <= fewest:
            break
        # What is left out may have taken several lines.
        number = max(number - max(excess // 3, 1), fewest)
    return made


def _lay_out_notes(block: Notes, screen: Screen) -> Text:
    text = Text()
    if block.title and block.notes:
        text.append(f"{screen.show(block.title)}\n", TITLE)
    width = widest([screen.show(note.label) for note in block.notes])
    limit = len(block.notes) if block.at_most is None or screen.width is None else block.at_most
    seen: Counter[str] = Counter()
    for note in block.notes:
        seen[note.label] += 1
        if seen[note.label] <= limit:
            text.append(pad(screen.show(note.label), width), note.style)
            text.append(_GAP + screen.wrap(screen.show(note.text), " " * width + _GAP) + "\n")
    for label, number in seen.items():
        if number > limit:
            text.append(f"{' ' * width}{_GAP}and {number - limit:,} more of {screen.show(label)}\n", DIM)
    return text
