"""Cuts the text of a long list in JSON in parts of complete items, so that it is never parsed at once.

The text is cut where our writer ends an item. Text of another layout is cut where a scanner finds the end of one, which
takes longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from gradscope.dump.manifest.entries.released_text import Text, give_back
from gradscope.dump.manifest.json_text import loads
from gradscope.errors import DumpError

#: Bytes of the text that are read at once; no item has more.
_WINDOW: Final = 1 << 20

_BLANK: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


class ListLayout(NamedTuple):
    """A `ListLayout` has how our writer begins an item behind another one, and how it ends the text behind the last."""

    next_item: bytes
    end: bytes


class Part(NamedTuple):
    """A `Part` has the text of some items, with a comma between two, and where that is in a longer text."""

    text: bytes
    start: int

    def values(self) -> list[object]:
        """Returns the items.

        Raises:
            DumpError: They are not strict JSON.
        """
        found = loads(b"[%b]" % self.text, place=lambda at: self.start + at - 1)
        assert isinstance(found, list), "it has the brackets of a list"
        return [*found]


def read_parts(text: Text, start: int, layout: ListLayout, read: Callable[[Part], None], *, what: str) -> int:
    """Reads a list part by part, and gives back the memory of what has been read.

    Args:
        text: The text.
        start: Where the list begins, behind its bracket.
        layout: The usual layout.
        read: Reads a part; it does nothing where it raises an error.
        what: What the list has, for messages.

    Returns:
        Where the list ends, before its bracket.

    Raises:
        DumpError: The text is malformed, an item is longer than a part may be, or `read` raised it.
    """
    position, ended = start, False
    while not ended:
        window = text[position : position + _WINDOW]
        last = position + len(window) == len(text)
        cut = _usual_cut(window, layout, last=last)
        if cut is None or not _is_read(read, Part(window[: cut.length], position)):
            cut = _scanned_cut(window, first=position == start)
            if not cut.length and not cut.ended:
                _refuse(Part(window, position), what, last=last)
            read(Part(window[: cut.length], position))
        position += cut.resume
        give_back(text, start, position)
        ended = cut.ended
    return position


class _Cut(NamedTuple):
    """_Cut has the length of the complete items at the start of a part, where to go on, and whether none follow."""

    length: int
    resume: int
    ended: bool


def _is_read(read: Callable[[Part], None], part: Part) -> bool:
    try:
        read(part)
    except DumpError:
        return False
    return True


def _usual_cut(window: bytes, layout: ListLayout, *, last: bool) -> _Cut | None:
    """Returns where our writer would have ended an item; None where it did not write this."""
    if last:
        length = len(window) - len(layout.end)
        return _Cut(length, length, ended=True) if window.endswith(layout.end) else None
    length = window.rfind(layout.next_item)
    return _Cut(length, length + 1, ended=False) if length > 0 else None


def _scanned_cut(window: bytes, *, first: bool) -> _Cut:
    """Returns where the last complete item ends, whatever the layout of the text is."""
    text = window.decode("latin-1")  # in which a character is a byte, as those of JSON are
    at = _behind_blanks(text, 0)
    if first and text.startswith("]", at):
        return _Cut(0, at, ended=True)
    length = resume = 0
    while True:
        try:
            _, end = _DECODER.raw_decode(text, at)
        except ValueError:
            return _Cut(length, resume, ended=False)
        at = _behind_blanks(text, end)
        if text.startswith("]", at):
            return _Cut(end, at, ended=True)
        if not text.startswith(",", at):
            return _Cut(length, resume, ended=False)
        length, resume = end, at + 1
        at = _behind_blanks(text, resume)


def _behind_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def _refuse(part: Part, what: str, *, last: bool) -> None:
    if last:
        loads(b"[" + part.text, place=lambda at: part.start + at - 1)
    raise DumpError(f"an item of the manifest's {what} is malformed, or has more than {_WINDOW >> 20} MiB")
