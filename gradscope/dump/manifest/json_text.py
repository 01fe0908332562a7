"""Reads and writes strict JSON text.

JSON has no NaN and no infinities; they are written as the strings "NaN", "Infinity" and "-Infinity". Reading refuses
text that other readers would interpret differently (a duplicate name, the bare tokens `NaN` and `Infinity`), and text
that is cheap to write and expensive to read (see `json_scan`), before it is parsed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from typing import Any, Final, cast

import numpy as np

from gradscope.dump.manifest.json_scan import most_names, require_small
from gradscope.dump.record import Json
from gradscope.errors import DumpError

_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _plain(number: object) -> Json:
    """Returns a number of NumPy as one of Python: JAX counts axes and sizes by either.

    Raises:
        TypeError: It is none.
    """
    if isinstance(number, np.generic):
        return cast("Json", number.item())
    raise TypeError(f"{number!r} is nothing that JSON has")


# ASCII alone, so that the bytes are valid UTF-8 whatever lone surrogates a layer's name holds.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_plain)


def dumps(value: Json) -> str:
    """Returns a value as compact JSON text, with NaN and infinities as strings."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        # The replacement walks the complete document in Python, and few documents need it.
        return _ENCODER.encode(with_nonfinite_strings(value))


def loads(text: str | bytes | bytearray, *, place: Callable[[int], int] = int) -> Json:
    """Parses JSON text. The string "NaN" stays a string (see `as_float`).

    Args:
        text: The text.
        place: Returns where a character of it is for the reader of an error message.

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
        raise DumpError(f"the JSON text is malformed: {_reason(error, place)}") from error
    if names.count != most_names(encoded):
        _require_unique_names(decoded)
    return value


def _reason(error: ValueError, place: Callable[[int], int]) -> str:
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at character {place(error.pos):,}"
        case UnicodeDecodeError():
            return f"{error.reason} at byte {place(error.start):,}"
        case _:
            return str(error)


def from_float(value: float) -> Json:
    """Returns a finite float unchanged, and any other one as "NaN", "Infinity" or "-Infinity"."""
    if math.isfinite(value):
        return value
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


def with_nonfinite_strings(value: Json) -> Json:
    """Returns a value in which every NaN and infinity is a string."""
    match value:
        case dict():
            return {name: with_nonfinite_strings(each) for name, each in value.items()}
        case list():
            return [with_nonfinite_strings(each) for each in value]
        case float():
            return from_float(value)
        case _:
            return value


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


class _Names:
    """_Names counts the fields of objects while these are parsed.

    Attributes:
        add: Adds the fields of an object, and returns the object.
    """

    def __init__(self) -> None:
        self._counts = [0]
        counting = _counting(self._counts)
        next(counting)
        self.add = counting.send

    @property
    def count(self) -> int:
        """The number of fields."""
        return self._counts[0]


def _counting(counts: list[int]) -> Generator[dict[str, Json], dict[str, Json]]:
    """Adds the number of fields of each object that it is sent, which it returns; resumed in a fifth of a call's time.

    It knows nothing that knows it: the object that it was sent last would else stay until a search for cycles.
    """
    found: dict[str, Json] = {}
    while True:
        counts[0] += len(found)
        found = yield found


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
