"""Documents: what a command shows, before anybody has decided how: tables, and remarks that name what they are about.

`lay_out_document` makes text of one, for a terminal or a pipe; `markdown` has the other way to show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rich.text import Text

from gradscope.report.render.screen import DIM, TITLE, Screen, pad, widest
from gradscope.report.render.text_layout import lay_out
from gradscope.report.tables.table import Table

_GAP: Final = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One sentence and what it is about.

    Attributes:
        label: A word or two: the name of a finding, of a fact.
        text: What there is to say.
        style: The style of the label.
    """

    label: str
    text: str
    style: str = DIM


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Remarks under one title.

    Attributes:
        title: What stands above them; "" for nothing.
        remarks: The remarks.
        at_most: How many of one label a terminal shows; the rest are counted. None for all.
    """

    title: str = ""
    remarks: tuple[Remark, ...]
    at_most: int | None = None


Document: TypeAlias = Sequence[Table | Remarks]


def lay_out_document(document: Document, screen: Screen) -> Text:
    """A document as text.

    Args:
        document: What to show; remarks without a remark are left out.
        screen: Where the text goes.

    Returns:
        Lines, each with its line feed, and an empty one between blocks. They fit the screen as they are and must not
        be wrapped again.
    """
    blocks = [lay_out(each, screen) if isinstance(each, Table) else _lay_out_remarks(each, screen) for each in document]
    return Text("\n").join(block for block in blocks if block)


def _lay_out_remarks(block: Remarks, screen: Screen) -> Text:
    text = Text()
    if block.title and block.remarks:
        text.append(f"{screen.show(block.title)}\n", TITLE)
    width = widest([screen.show(remark.label) for remark in block.remarks])
    limit = len(block.remarks) if block.at_most is None or screen.width is None else block.at_most
    seen: Counter[str] = Counter()
    for remark in block.remarks:
        seen[remark.label] += 1
        if seen[remark.label] <= limit:
            text.append(pad(screen.show(remark.label), width), remark.style)
            text.append(_GAP + screen.wrap(screen.show(remark.text), " " * width + _GAP) + "\n")
    for label, number in seen.items():
        if number > limit:
            text.append(f"{' ' * width}{_GAP}and {number - limit:,} more of {screen.show(label)}\n", DIM)
    return text
