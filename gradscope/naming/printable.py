"""Untrusted names are made text: by `printable` for a terminal, by `spreadsheet_text` for a spreadsheet, too."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

#: Unicode categories that a terminal interprets or cannot encode: control, format (including bidi marks), surrogate,
#: line and paragraph separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

#: The start of a cell that a spreadsheet would run as a formula; it takes one with an apostrophe in front as text.
#: What begins with a sign is none where all of it is a number.
_FORMULA: Final = re.compile(r"[=@\t\r]|[+-](?!(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?\Z)", re.ASCII)


def printable(name: str) -> str:
    r"""Returns the name with control characters, bidi marks and lone surrogates escaped as `\xNN` or `\uNNNN`.

    Markup is not escaped: a renderer must never interpret a name as markup.
    """
    if name.isascii() and name.isprintable():
        return name
    return "".join(_escaped(char) if unicodedata.category(char) in _UNSAFE else char for char in name)


def without_middle(text: str, longest: int) -> str:
    """Returns a text of about `longest` characters at most, without its middle where it is longer."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters ... {text[-half:]}"


def spreadsheet_text(text: str) -> str:
    """Returns a text as `printable` shows it, after an apostrophe where a spreadsheet would take it for a formula.

    References:
        OWASP, "CSV Injection": the characters that a formula begins with.
    """
    shown = printable(text)
    return f"'{shown}" if _FORMULA.match(text) else shown


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
