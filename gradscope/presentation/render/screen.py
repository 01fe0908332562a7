"""A screen is the terminal or pipe for which text is laid out, with the styles that a terminal shows.

On a terminal a table drops columns and the middle of long names to fit its width. In a pipe nothing is cut, because it
could not be recovered. A style is a colour that repeats the meaning of the words.
"""

from __future__ import annotations

import re
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
#: The index of a scope, at its end.
_INDEX: Final = re.compile(r"(?:\[[^\[\]]*\]|_?\d+)$")
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
        """Returns the text in at most `width` columns: a path without the middles of its scopes, others without theirs.

        A scope keeps its index, `block[3]` or `block_3`.
        """
        if cell_len(text) <= width:
            return text
        parts = text.split("/")
        # What a tensor is stands first, and which one last.
        for whole in ({0, len(parts) - 1}, {len(parts) - 1}) if len(parts) > 2 else ():
            for longest in range(width, len(self.ellipsis) + 1, -1):
                short = (part if at in whole else self._scope(part, longest) for at, part in enumerate(parts))
                if cell_len(path := "/".join(short)) <= width:
                    return path
        return self._elided(text, width)

    def _scope(self, part: str, width: int) -> str:
        index = _INDEX.search(part)
        start = len(part) if index is None else index.start()
        return self._elided(part[:start], width) + part[start:]

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
