"""`printable` escapes the characters of a name that a terminal would interpret."""

from __future__ import annotations

import unicodedata
from typing import Final

#: Unicode categories that a terminal interprets or cannot encode: control, format (including bidi marks), surrogate,
#: line and paragraph separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(name: str) -> str:
    r"""Returns the name with control characters, bidi marks and lone surrogates escaped as `\xNN` or `\uNNNN`.

    Markup is not escaped: a renderer must never interpret a name as markup.
    """
    if name.isascii() and name.isprintable():
        return name
    return "".join(_escaped(char) if unicodedata.category(char) in _UNSAFE else char for char in name)


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
