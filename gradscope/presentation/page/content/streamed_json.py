"""Content is written as JSON piece by piece, and compressed as it is written.

A piece is made when it is written, so that no long list is in memory at once: a list may be an iterator.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from gradscope.dump.record import Json

#: JSON in which the items of objects and lists may be made when they are written; each iterator is read once.
Streamed: TypeAlias = "Json | Mapping[str, Streamed] | Iterator[Streamed]"

#: The best compression, in the format of gzip.
_LEVEL: Final = 9
_GZIP_BITS: Final = 31
#: The bytes of the size of the JSON.
_SIZE_BYTES: Final = 4
#: Characters that are compressed at once, and pieces of text: a short one takes ten times its length.
_PART: Final = 1 << 20
_MOST_PIECES: Final = 1 << 12


def encoded(items: Iterable[tuple[str, Streamed]], packed: bytes) -> str:
    """Returns content in base64 of gzip: the JSON, the packed numbers, and the size of the JSON in four bytes.

    Args:
        items: The names and values of the object that the JSON is.
        packed: The numbers.
    """
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP_BITS)
    size = 0
    found: list[bytes] = []
    for part in _joined(_object_parts(items)):
        data = part.encode()
        size += len(data)
        found.append(compressor.compress(data))
    found += [compressor.compress(packed + size.to_bytes(_SIZE_BYTES, "little")), compressor.flush()]
    return base64.b64encode(b"".join(found)).decode()


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
        for at, each in enumerate(value):
            yield "," if at else ""
            yield from _parts(each)
        yield "]"
    else:
        yield json.dumps(value, separators=(",", ":"), allow_nan=False)


def _object_parts(items: Iterable[tuple[str, Streamed]]) -> Iterator[str]:
    yield "{"
    for at, (name, value) in enumerate(items):
        yield f"{',' if at else ''}{json.dumps(name)}:"
        yield from _parts(value)
    yield "}"
