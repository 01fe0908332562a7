"""Maps the key of a tensor to the name of its zip member, and back.

A member's name is the key plus `.npy`. Characters that a zip reader, a file system or NumPy would interpret are
escaped as `%XX`, once for each byte of their UTF-8:

- control characters, backslashes and lone surrogates;
- the components `.` and `..`, and a slash that would make an empty component;
- the dot of a final `.npy`, because `numpy.load` returns layer `a` for the name `a.npy`;
- a `%` that would read as the start of an escape.

The mapping is injective: different keys have different member names.
"""

from __future__ import annotations

import re
from typing import Final

from gradscope.errors import UsageError
from gradscope.naming import printable

#: Longest name of a member, in bytes of UTF-8.
LIMIT_BYTES: Final = 1000

_SUFFIX: Final = ".npy"
_UNSAFE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]"
    r"|%(?=[0-9A-Fa-f]{2})"
    r"|(?<![^/])/|/\Z"
    r"|(?<![^/])\.{1,2}(?=/|\Z)"
    r"|\.(?=npy\Z)"
)
#: Names of ASCII of which nothing is escaped: no part of these starts with a dot, and none is `%` or the suffix.
_SAFE: Final = re.compile(r"[\w\[\]#@,:+=~ -]+(?:/[\w\[\]#@,:+=~ -]+)*", re.ASCII)
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_SURROGATE_PAIR: Final = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")


def member_name(key: str) -> str:
    """Returns the name of the zip member that holds the tensor of a key.

    Raises:
        UsageError: The name would be too long, or the key spells a character as two surrogates, which in JSON is
            identical to the character itself.
    """
    if len(key) <= LIMIT_BYTES - len(_SUFFIX) and _SAFE.fullmatch(key):
        return key + _SUFFIX  # most names; looking for what is unsafe takes five times as long
    if _SURROGATE_PAIR.search(key):
        raise UsageError(f"the name {printable(key)} holds a surrogate pair instead of the letter it encodes")
    name = _UNSAFE.sub(lambda match: _escaped(match[0]), key) + _SUFFIX
    size = len(name.encode())
    if size > LIMIT_BYTES:
        raise UsageError(
            f"the name {printable(key[:40])}... takes {size} bytes in the file, more than {LIMIT_BYTES}",
            hint="shorten the layer's name or scope",
        )
    return name


def key_of_member(name: str) -> str:
    """Returns the key of a member's name. It is the inverse of `member_name`."""
    escaped = name.removesuffix(_SUFFIX).encode(errors="surrogatepass")
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), escaped).decode(errors="surrogatepass")


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode(errors="surrogatepass"))
