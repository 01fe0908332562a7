"""Content is written as JSON piece by piece, and compressed as it is written.

A piece is made when it is written, so that no long list is in memory at once: a list may be an iterator.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import Final, TypeAlias

from gradscope.dump.record import Json

#: JSON in which the items of objects and lists may be made when they are written; each iterator is read once.
Streamed: TypeAlias = "Json | Mapping[str, Streamed] | Iterator[Streamed]"

#: How well is compressed, in the format of gzip: the best takes two and a half times as long, for a hundredth less.
_LEVEL: Final = 7
_GZIP_BITS: Final = 31
#: The bytes of the size of the JSON.
_SIZE_BYTES: Final = 4
#: The bytes that base64 writes as one group of characters.
_BASE64_BYTES: Final = 3
#: Characters that are compressed at once, and pieces of text: a short one takes ten times its length.
_PART: Final = 1 << 20
_MOST_PIECES: Final = 1 << 12
#: Items of a list that are written at once: enough that a call for them takes no longer than they do.
_ITEMS: Final = 1 << 8

#: The types of JSON of which nothing has yet to be made.
_COMPLETE: Final = frozenset((str, int, float, bool, type(None), list))

_text_of: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encoded(items: Iterable[tuple[str, Streamed]], packed: bytes) -> Iterator[str]:
    """Yields content in base64 of gzip, in parts: the JSON, the packed numbers, and the size of the JSON in four bytes.

    Args:
        items: The names and values of the object that the JSON is.
        packed: The numbers.
    """
    rest = b""
    for part in _compressed(items, packed):
        some = rest + part
        end = len(some) - len(some) % _BASE64_BYTES
        rest = some[end:]
        yield base64.b64encode(some[:end]).decode()
    yield base64.b64encode(rest).decode()


def _compressed(items: Iterable[tuple[str, Streamed]], packed: bytes) -> Iterator[bytes]:
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP_BITS)
    size = 0
    for part in _joined(_object_parts(items)):
        data = part.encode()
        size += len(data)
        yield compressor.compress(data)
    yield compressor.compress(packed + size.to_bytes(_SIZE_BYTES, "little"))
    yield compressor.flush()


def _joined(parts: Iterable[str]) -> Iterator[str]:
    """Yields parts of a text, several small ones as one."""
    some: list[str] = []
    length = 0
    for part in parts:
        some.append(part)
        length += len(part)
        if length > _PART or len(some) > _MOST_PIECES:
            yield "".join(some)
            some, length = [], 0
    yield "".join(some)


def _parts(value: Streamed) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _object_parts(value.items())
    elif isinstance(value, Iterator):
        yield "["
        for at, part in enumerate(_items_parts(value)):
            yield "," if at else ""
            yield from part
        yield "]"
    else:
        yield _text_of(value)


def _items_parts(items: Iterator[Streamed]) -> Iterator[Iterable[str]]:
    """Yields the parts of one item, or those of several of which nothing has yet to be made."""
    for complete, alike in groupby(items, _is_complete):
        if not complete:
            yield from map(_parts, alike)
        while some := [*islice(alike, _ITEMS)]:
            yield (_text_of(some)[1:-1],)


def _is_complete(value: Streamed) -> bool:
    # By the type first: to ask of a million numbers whether they are mappings takes a second.
    return type(value) in _COMPLETE or not isinstance(value, Mapping | Iterator)


def _object_parts(items: Iterable[tuple[str, Streamed]]) -> Iterator[str]:
    yield "{"
    for at, (name, value) in enumerate(items):
        yield f"{',' if at else ''}{_text_of(name)}:"
        yield from _parts(value)
    yield "}"
