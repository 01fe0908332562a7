"""Reads and writes strict JSON text.

JSON has no NaN and no infinities; they are written as the strings "NaN", "Infinity" and "-Infinity". Reading refuses
text that other readers would interpret differently (a duplicate name, the bare tokens `NaN` and `Infinity`), and text
that is cheap to write and expensive to read (deep nesting, millions of empty lists), before it is parsed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradscope.dump.record import Json
from gradscope.errors import DumpError

#: Levels of arrays and objects; a manifest has seven.
DEPTH_LIMIT: Final = 32

#: Arrays and objects, and values in them. A dump of 70,000 tensors has 1 and 19 million.
CONTAINERS_LIMIT: Final = 2_000_000
VALUES_LIMIT: Final = 24_000_000

#: Bytes of the text that are searched at once, so that they stay in the cache.
_PART: Final = 1 << 18

_NO_BRACKET: Final = bytes(set(range(256)) - {*b'[]{}"'})
_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)
_WITH_BRACKETS: Final = re.compile(rb'"[^"]*"?')
_BLANKS: Final = (b" ", b"\n", b"\r", b"\t")
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# ASCII alone, so that the bytes are valid UTF-8 whatever lone surrogates a layer's name holds.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def dumps(value: Json) -> str:
    """Returns a value as compact JSON text, with NaN and infinities as strings."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        # The replacement walks the complete document in Python, and few documents need it.
        return _ENCODER.encode(_without_nonfinite(value))


def loads(text: str | bytes | bytearray) -> Json:
    """Parses JSON text. The string "NaN" stays a string (see `as_float`).

    Raises:
        DumpError: The text is not strict JSON, not UTF-8, or has more or deeper arrays and objects than the limits.
    """
    names = _Names()
    try:
        decoded = text if isinstance(text, str) else text.decode()
        encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        require_small(encoded)
        value = json.loads(decoded, parse_constant=_refuse_constant, object_hook=names.add)
    except ValueError as error:
        raise DumpError(f"the JSON text is malformed: {error}") from error
    finally:
        names.close()
    if names.count != most_names(encoded):
        _require_unique_names(decoded)
    return value


def from_float(value: float) -> Json:
    """Returns a finite float unchanged, and any other one as "NaN", "Infinity" or "-Infinity"."""
    if math.isfinite(value):
        return value
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


def as_float(value: Json) -> float:
    """Returns the float of a JSON value that is a number, "NaN", "Infinity" or "-Infinity".

    Raises:
        DumpError: The value is something else.
    """
    if type(value) is float:
        return value
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DumpError(f"expected a number, found {_shortened(value)}")
    try:
        return float(value)
    except OverflowError:
        raise DumpError(f"expected a number that a float64 can hold, found one of {len(str(value))} digits") from None


def require_small(text: bytes | bytearray) -> None:
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


def _brackets(text: bytes | bytearray) -> bytes | bytearray:
    """Returns the brackets of JSON text that are those of lists and objects, and not inside of strings."""
    # In a tenth of the time of parsing. Most strings have no bracket, and two quotes are left of these.
    unescaped = _ESCAPED.sub(b"", text) if b"\\" in text else text
    return _WITH_BRACKETS.sub(b"", unescaped.translate(None, _NO_BRACKET).replace(b'""', b""))


def _without_nonfinite(value: Json) -> Json:
    match value:
        case dict():
            return {name: _without_nonfinite(each) for name, each in value.items()}
        case list():
            return [_without_nonfinite(each) for each in value]
        case float():
            return from_float(value)
        case _:
            return value


class _Names:
    """_Names counts the fields of objects while these are parsed.

    Attributes:
        count: The number of fields.
        add: Adds the fields of an object, and returns the object.
        close: Lets go of the object that was added last, which else stays until a search for cycles: there is one.
    """

    # A generator is resumed in a fifth of the time of calling a function.
    def __init__(self) -> None:
        self.count = 0
        counting = self._counting()
        next(counting)
        self.add = counting.send
        self.close = counting.close

    def _counting(self) -> Generator[dict[str, Json], dict[str, Json]]:
        found: dict[str, Json] = {}
        while True:
            self.count += len(found)
            found = yield found


def most_names(text: bytes | bytearray) -> int | None:
    """Returns an upper bound of the number of fields that JSON text names; None where it is not known."""
    # A quote and a colon: the end of a name, or inside a text. A reader that is called for the pairs of each object
    # takes as long as all of the parsing (2026-11), so names are read one by one only where this number is not that of
    # the fields found. One character is found in a tenth of the time of two.
    if any(blank in text and b'"' + blank in text for blank in _BLANKS):
        return None
    pairs = ((part[:-1] == ord('"')) & (part[1:] == ord(":")) for part in _parts(text, more=1))
    return int(sum(map(np.count_nonzero, pairs)))  # in a sixth of the time of `count`


def _parts(text: bytes | bytearray, *, more: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """Yields the bytes of text in parts, each with some `more` bytes that follow it."""
    codes = np.frombuffer(text, np.uint8)
    return (codes[start : start + _PART + more] for start in range(0, len(codes), _PART))


def _require_unique_names(text: str) -> None:
    try:
        json.loads(text, object_pairs_hook=_without_duplicates)
    except ValueError as error:
        raise DumpError(f"the JSON text is malformed: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("an object names a field twice")


def _refuse_constant(token: str) -> Json:
    raise ValueError(f"the bare token {token} is not JSON")


def _shortened(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
