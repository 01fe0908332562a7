"""Scans JSON text without parsing it, for how deep it is, how many values it has, and what memory these take.

Text that is cheap to write and expensive to read (deep nesting, millions of empty lists, of numbers or of texts of one
character) is refused by what is found here, before anything is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Final

import numpy as np
import numpy.typing as npt

from gradscope.errors import DumpError

#: Levels of arrays and objects; a manifest has seven.
DEPTH_LIMIT: Final = 32

#: Arrays and objects, and values in them. A dump of 70,000 tensors has 1 and 19 million.
CONTAINERS_LIMIT: Final = 2_000_000
VALUES_LIMIT: Final = 24_000_000

#: Bytes of the text that are searched at once, so that they stay in the cache.
_PART: Final = 1 << 18

_ESCAPES: Final = re.compile(rb"\\*")
_NO_BRACKET: Final = bytes(set(range(256)) - {*b'[]{}"'})
_WITH_BRACKETS: Final = re.compile(rb'"[^"]*"?')
_NAME: Final = re.compile(rb'("[^"]*")\s*:')
_BLANKS: Final = (b" ", b"\n", b"\r", b"\t")

#: Bytes that parsed JSON takes: an object or a list, a field of an object, a name that was not seen before, a text but
#: for its characters, a number, and an escaped character.
_CONTAINER_BYTES: Final = 150
_FIELD_BYTES: Final = 35
_NAME_BYTES: Final = 120
_TEXT_BYTES: Final = 60
_NUMBER_BYTES: Final = 36
_ESCAPE_BYTES: Final = 10

#: Different names of fields that are told apart; a manifest has a hundred, and those of its inputs.
_MOST_KNOWN: Final = 10_000

#: What a character of a string takes more where one of the string is outside of ASCII.
_WIDE_BYTES: Final = 6

#: What an escaped character takes of one very long text while that is parsed: it is a text of its own until the end.
_LONG_ESCAPE_BYTES: Final = 90


class MemoryBudget:
    """A `MemoryBudget` bounds the memory that is taken by what is read from a file.

    Args:
        limit_bytes: The bound.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._left_bytes = limit_bytes

    def spend(self, size_bytes: int) -> None:
        """Takes some bytes of the budget.

        Raises:
            DumpError: They are more than are left.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise DumpError(f"its values would take more than {self._limit_bytes >> 20} MiB of memory")


def require_small(text: bytes | bytearray | mmap) -> None:
    """Raises an error for text of too many or too deep values, without parsing it.

    Raises:
        DumpError: The text has more or deeper arrays and objects than the limits.
    """
    brackets = np.frombuffer(_brackets(text), np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    commas = sum(np.count_nonzero(part == ord(",")) for part in _parts(text))  # in a third of the time of `count`
    if np.count_nonzero(opening) > CONTAINERS_LIMIT or commas > VALUES_LIMIT:
        limits = f"{CONTAINERS_LIMIT:,} lists and objects, or {VALUES_LIMIT:,} values"
        raise DumpError(f"the JSON text has more than {limits}")
    # Where there are more, they close what was never opened, and parsing ends there.
    steps = np.where(opening[: 2 * CONTAINERS_LIMIT], np.int8(1), np.int8(-1))
    if steps.cumsum(dtype=np.int32).max(initial=0) > DEPTH_LIMIT:
        raise DumpError(f"the JSON text is nested deeper than {DEPTH_LIMIT} levels")


def open_brackets(text: bytes | bytearray) -> int:
    """Returns how many lists and objects begin in a part of JSON text, less those that end there."""
    brackets = _brackets(text)
    return sum(brackets.count(each) for each in b"[{") - sum(brackets.count(each) for each in b"]}")


def most_names(text: bytes | bytearray) -> int | None:
    """Returns an upper bound of the number of fields that JSON text names; None where it is not known."""
    # A quote and a colon: the end of a name, or inside a text. A reader that is called for the pairs of each object
    # takes as long as all of the parsing (2026-11), so names are read one by one only where this number is not that of
    # the fields found. One character is found in a tenth of the time of two.
    if any(blank in text and b'"' + blank in text for blank in _BLANKS):
        return None
    pairs = ((part[:-1] == ord('"')) & (part[1:] == ord(":")) for part in _parts(text, more=1))
    return int(sum(map(np.count_nonzero, pairs)))  # in a sixth of the time of `count`


def parsed_bytes(text: bytes | bytearray) -> int:
    """Returns about how much memory a program needs to parse JSON text, which it then has decoded, too."""
    found = _Counts.of(text)
    fields, names = _fields_and_names(text)
    texts = max(found.texts - fields, 0)
    return (
        len(text) * (2 if text.isascii() else 8)  # one character of four bytes makes all of a text's so wide
        + found.containers * _CONTAINER_BYTES
        + fields * _FIELD_BYTES
        + names * _NAME_BYTES
        + texts * _TEXT_BYTES
        + max(found.commas + 1 - texts, 0) * _NUMBER_BYTES
        + found.escape_bytes
        + found.wide_bytes * _WIDE_BYTES
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """_Counts has how many texts, commas, and lists and objects a text has, and what escapes add.

    Attributes:
        escape_bytes: What escaped characters take.
        wide_bytes: Bytes of the text that are in one string, as far as is known, with a character that may be wide.
    """

    texts: int
    commas: int
    containers: int
    escape_bytes: int
    wide_bytes: int

    @classmethod
    def of(cls, text: bytes | bytearray) -> _Counts:
        quotes = commas = containers = escape_bytes = wide_bytes = long_bytes = 0
        for part in _parts(text):
            quoted = int(np.count_nonzero(part == ord('"')))
            escapes = int(np.count_nonzero(part == ord("\\")))
            quotes += quoted
            commas += int(np.count_nonzero(part == ord(",")))
            containers += int(np.count_nonzero((part == ord("[")) | (part == ord("{"))))
            escape_bytes += escapes * (_ESCAPE_BYTES if quoted else _LONG_ESCAPE_BYTES)
            if escapes and _escaped(part, "u"):
                wide_bytes += len(part)
            elif quoted == (_escaped(part, '"') if escapes else 0):
                long_bytes += len(part)  # the string may go on in other parts
        return cls(quotes // 2, commas, containers, escape_bytes, wide_bytes + (long_bytes if wide_bytes else 0))


def _escaped(part: npt.NDArray[np.uint8], character: str) -> int:
    """Returns how often a character has a backslash before it."""
    return int(np.count_nonzero((part[:-1] == ord("\\")) & (part[1:] == ord(character))))


def _fields_and_names(text: bytes | bytearray) -> tuple[int, int]:
    """Returns how many fields a text names, and how many different names these have; both may be estimates."""
    fields, known, new = 0, set[bytes](), 0
    for found in _NAME.finditer(text):
        fields += 1
        if len(known) < _MOST_KNOWN:
            known.add(found[1])
        elif found[1] not in known:
            new += 1
    return fields, len(known) + new


def _brackets(text: bytes | bytearray | mmap) -> bytes:
    """Returns the brackets of JSON text that are those of lists and objects, and not inside of strings."""
    # In a tenth of the time of parsing. Most strings have no bracket, and two quotes are left of these. Pairs of
    # backslashes go first, so that those before a quote escape it.
    unescaped = (
        part.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in part else part for part in _whole_escapes(text)
    )
    left = b"".join(part.translate(None, _NO_BRACKET) for part in unescaped).replace(b'""', b"")
    return b"".join(_WITH_BRACKETS.sub(b"", part) for part in _whole_strings(left))


def _whole_escapes(text: bytes | bytearray | mmap) -> Iterator[bytes]:
    """Yields text in parts that end outside of escapes."""
    start = 0
    while start < len(text):
        end = start + _PART
        if text[end - 1 : end] == b"\\" and (found := _ESCAPES.match(text, end)) is not None:
            end = found.end() + 1
        yield bytes(text[start:end])
        start = end


def _whole_strings(text: bytes) -> Iterator[bytes]:
    """Yields text in parts that end outside of strings."""
    # What is left of all of a text at once takes ten times its size.
    start = 0
    while start < len(text):
        end = start + _PART
        if text.count(b'"', start, end) % 2:
            found = text.find(b'"', end)
            end = len(text) if found < 0 else found + 1
        yield text[start:end]
        start = end


def _parts(text: bytes | bytearray | mmap, *, more: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """Yields the bytes of text in parts, each with some `more` bytes that follow it."""
    codes = np.frombuffer(text, np.uint8)
    return (codes[start : start + _PART + more] for start in range(0, len(codes), _PART))
