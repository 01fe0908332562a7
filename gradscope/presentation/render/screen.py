"""A screen is the terminal or pipe for which text is laid out, with the styles that a terminal shows.

On a terminal a table drops columns and scopes in long names to fit its width. In a pipe nothing is cut, because it
could not be recovered. A style is a colour that repeats the meaning of the words.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, set_cell_size

from gradscope import naming

TITLE: Final = "bold"
HEADING: Final = "dim bold"
DIM: Final = "dim"
GOOD: Final = "green"
DOUBTFUL: Final = "yellow"
BAD: Final = "red"

#: Findings that make everything after them unreliable, and verdicts.
_BAD_WORDS: Final = frozenset({"nonfinite", "exploding", "self-check", "different", "missing", "extra"})
_GOOD_WORDS: Final = frozenset({"same"})


def style_of_words(text: str) -> str:
    """Returns the style of words: names of findings, or a status, separated by commas."""
    words = frozenset(text.replace(",", " ").split())
    if words & _BAD_WORDS:
        return BAD
    return GOOD if words & _GOOD_WORDS else DOUBTFUL


_NARROWEST_PARAGRAPH: Final = 20
#: The index of a scope, at its end; not a range, as `[0..11]`, which tells a line less from others than a name does.
_INDEX: Final = re.compile(r"(?:\[(?!\d+\.\.)[^\[\]]*\]|_?\d+)$")
#: The most lines of an overview, and the fewest to which a low terminal reduces it.
_MOST_LINES: Final = 40
_FEWEST_LINES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A `Screen` is a terminal or a pipe.

    Attributes:
        width: Columns of the terminal; None for a pipe.
        height: Lines of the terminal; None where they are not known.
        unicode: Whether its encoding has more than ASCII.
    """

    width: int | None = None
    height: int | None = None
    unicode: bool = True

    @property
    def overview_lines(self) -> int:
        """The number of lines of an overview: those of a terminal without its prompt, at least 20 and at most 40."""
        lines = _MOST_LINES if self.height is None else self.height - 1
        return max(min(lines, _MOST_LINES), _FEWEST_LINES)

    @property
    def rule(self) -> str:
        """The character of horizontal rules."""
        return "─" if self.unicode else "-"

    @property
    def ellipsis(self) -> str:
        """The mark in the place of text that was cut."""
        return "…" if self.unicode else "..."

    def show(self, name: str) -> str:
        """Returns a name with everything escaped that a terminal would obey or cannot encode."""
        shown = naming.printable(name)
        return shown if self.unicode else shown.encode("ascii", "backslashreplace").decode("ascii")

    def show_all(self, names: list[str]) -> list[str]:
        """Returns each name as `show` does."""
        # Asked once for all, because most tables have no name of which anything is escaped.
        return names if is_narrow(names) else list(map(self.show, names))

    def elide(self, text: str, width: int) -> str:
        """Returns the text in at most `width` columns: a path without scopes in it, other text without its middle.

        What a tensor is stands first in a path, and which one last: both stay. Between them scopes are left out whole,
        the first before the last, and of `block[3]` or `block_3` the number stays where there is room.
        """
        if cell_len(text) <= width:
            return text
        scopes = text.split("/")
        path = self._without_scopes(scopes, width) if len(scopes) > 2 else ""
        return path or self._elided(text, width)

    def _without_scopes(self, scopes: Sequence[str], width: int) -> str:
        """Returns a path with as many of its scopes as fit; "" where its first and its last do not."""
        first, *inner, last = scopes
        shown, numbered = [*inner], [*map(self._numbered, inner)]

        def path(scopes: Sequence[str]) -> str:
            runs = (each for before, each in pairwise(["", *scopes]) if not each == before == self.ellipsis)
            return "/".join((first, *runs, last))

        for shorter in (numbered, [self.ellipsis] * len(inner)):
            for at in sorted(range(len(inner)), key=lambda at: numbered[at] != self.ellipsis):
                if cell_len(path(shown)) > width:
                    shown[at] = shorter[at]
        if cell_len(path(shown)) > width:
            return ""
        for at in reversed(range(len(inner))):  # what the last cuts have made room for
            for longer in (numbered[at], inner[at]):
                more = [*shown[:at], longer, *shown[at + 1 :]]
                shown = more if cell_len(path(more)) <= width else shown
        return path(shown)

    def _numbered(self, scope: str) -> str:
        """Returns a scope without its name, but with its number."""
        number = _INDEX.search(scope)
        return self.ellipsis if number is None else self.ellipsis * (number.start() > 0) + number.group()

    def _elided(self, text: str, width: int) -> str:
        # Names differ at their ends.
        if cell_len(text) <= width:
            return text
        room = width - len(self.ellipsis)
        if room < 2:
            return set_cell_size(text, max(width, 0))
        tail = room - room // 2
        return set_cell_size(text, room // 2) + self.ellipsis + set_cell_size(text[::-1], tail)[::-1]

    def wrap(self, sentence: str, indent: str = "") -> str:
        """Returns the sentence in lines that fit, all but the first indented; names in it are not broken."""
        if self.width is None:
            return sentence
        room = max(self.width - len(indent), _NARROWEST_PARAGRAPH)
        lines = textwrap.wrap(sentence, room, break_long_words=False, break_on_hyphens=False)
        return f"\n{indent}".join(lines)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Returns the text with blanks up to `width` columns, after it or, if `right`, before it."""
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def widest(texts: list[str], *, narrow: bool | None = None) -> int:
    """Returns the columns of the widest of some texts; 0 where there are none.

    Args:
        texts: The texts.
        narrow: What `is_narrow` says of them; None where it was not requested.
    """
    return max(map(len if (is_narrow(texts) if narrow is None else narrow) else cell_len, texts), default=0)


def padded(texts: list[str], width: int, *, narrow: bool, right: bool = False) -> list[str]:
    """Returns each text as `pad` does; `narrow` is what `is_narrow` says of them."""
    if not narrow:
        return [pad(text, width, right=right) for text in texts]
    if {*map(len, texts)} == {width}:
        return texts
    return [text.rjust(width) for text in texts] if right else [text.ljust(width) for text in texts]


def is_narrow(texts: list[str]) -> bool:
    """Returns whether every character of some texts takes one column, and none is one that a terminal obeys."""
    # Asked once for a column: characters are measured one by one, and most tables have none that is wide.
    joined = "".join(texts)
    return joined.isascii() and joined.isprintable()
