"""Screens: what text is laid out for, and how names and long words are made to fit it.

A *screen* is either a terminal of some width or, with no width, a pipe or a file. On a terminal a table gives up
columns and the middle of long names to fit; in a pipe nothing is ever cut, since nobody can widen it afterwards.

Styles: how meaning is coloured on a terminal. Colour only repeats what the words say.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size

from gradscope import naming

TITLE: Final = "bold"
HEADING: Final = "dim bold"
DIM: Final = "dim"
GOOD: Final = "green"
DOUBTFUL: Final = "yellow"
BAD: Final = "red"

#: Words after which nothing that follows can be trusted, or that are the verdict itself.
_BAD_WORDS: Final = frozenset({"nonfinite", "exploding", "self-check", "different", "missing", "extra"})
_GOOD_WORDS: Final = frozenset({"same"})


def style_of_words(text: str) -> str:
    """The style of remarks: names of findings, a status, separated by commas."""
    words = frozenset(text.replace(",", " ").split())
    if words & _BAD_WORDS:
        return BAD
    return GOOD if words & _GOOD_WORDS else DOUBTFUL


_NARROWEST_PARAGRAPH: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where text goes.

    Attributes:
        width: Columns of the terminal; None off a terminal.
        unicode: Whether its encoding has more than ASCII.
    """

    width: int | None = None
    unicode: bool = True

    @property
    def rule(self) -> str:
        """The character that horizontal rules are made of."""
        return "─" if self.unicode else "-"

    @property
    def ellipsis(self) -> str:
        """What stands for what was cut."""
        return "…" if self.unicode else "..."

    def show(self, name: str) -> str:
        """A name as it can be printed here: nothing that a terminal would obey, nothing that it cannot encode."""
        shown = naming.printable(name)
        return shown if self.unicode else shown.encode("ascii", "backslashreplace").decode("ascii")

    def elide(self, text: str, width: int) -> str:
        """The text in at most `width` columns: without its middle, because names differ at their ends."""
        if cell_len(text) <= width:
            return text
        room = width - len(self.ellipsis)
        if room < 2:
            return set_cell_size(text, max(width, 0))
        tail = room - room // 2
        return set_cell_size(text, room // 2) + self.ellipsis + set_cell_size(text[::-1], tail)[::-1]

    def wrap(self, sentence: str, indent: str = "") -> str:
        """The sentence in lines that fit, all but the first indented; names in it are not torn apart."""
        if self.width is None:
            return sentence
        room = max(self.width - len(indent), _NARROWEST_PARAGRAPH)
        lines = textwrap.wrap(sentence, room, break_long_words=False, break_on_hyphens=False)
        return f"\n{indent}".join(lines)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text with blanks up to `width` columns, behind it or, where it is to stand `right`, before it."""
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def widest(texts: list[str]) -> int:
    """Columns of the widest of some texts; 0 where there are none."""
    return max(map(cell_len, texts), default=0)
