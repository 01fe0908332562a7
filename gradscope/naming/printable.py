"""Making a name safe to print: what a terminal would obey is shown instead."""

from __future__ import annotations

import unicodedata
from typing import Final

#: Unicode categories a terminal acts on or cannot encode: control, format (bidi marks among them), surrogate, line and
#: paragraph separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(name: str) -> str:
    r"""The name with control characters, escape sequences, bidi marks and lone surrogates shown as `\xNN` or `\uNNNN`.

    Markup is not this function's matter: a renderer must never interpret a name as markup in the first place.
    """
    if name.isascii() and name.isprintable():
        return name
    return "".join(_escaped(char) if unicodedata.category(char) in _UNSAFE else char for char in name)


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
