"""Reads and writes strict JSON text.

JSON has no NaN and no infinities; they are written as the strings "NaN", "Infinity" and "-Infinity". Reading refuses
text that other readers would interpret differently (a duplicate name, the bare tokens `NaN` and `Infinity`), and text
that is cheap to write and expensive to read (deep nesting, millions of empty lists), before it is parsed.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from gradscope.dump.record import Json
from gradscope.errors import DumpError

#: Levels of arrays and objects; a manifest has seven.
DEPTH_LIMIT: Final = 32

#: Arrays and objects, and values in them. A dump of 70,000 tensors has 1 and 19 million.
CONTAINERS_LIMIT: Final = 2_000_000
VALUES_LIMIT: Final = 24_000_000

_CONTAINERS: Final = frozenset({dict, list})
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


def loads(text: str | bytes) -> Json:
    """Parses JSON text. The string "NaN" stays a string (see `as_float`).

    Raises:
        DumpError: The text is not strict JSON, not UTF-8, or has more or deeper arrays and objects than the limits.
    """
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        _require_small(decoded)
        value = json.loads(decoded, parse_constant=_refuse_constant)
    except RecursionError:
        raise DumpError("the JSON text is nested too deeply") from None
    except ValueError as error:
        raise DumpError(f"the JSON text is malformed: {error}") from error
    if _names_in(value) != _most_names(decoded):
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
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DumpError(f"expected a number, found {_shortened(value)}")
    try:
        return float(value)
    except OverflowError:
        raise DumpError(f"expected a number that a float64 can hold, found one of {len(str(value))} digits") from None


def _require_small(text: str) -> None:
    """Raises an error for text of too many values, without parsing it."""
    # Counting a character takes a thousandth of the time of parsing. Names hold brackets, too; those of containers are
    # counted only where all together are too many.
    containers = text.count("[") + text.count("{")
    if containers > CONTAINERS_LIMIT:
        containers = sum(text.count(before + bracket) for before in "[{,: \n\r\t" for bracket in "[{")
    if containers > CONTAINERS_LIMIT or text.count(",") > VALUES_LIMIT:
        limits = f"{CONTAINERS_LIMIT:,} lists and objects, or {VALUES_LIMIT:,} values"
        raise DumpError(f"the JSON text has more than {limits}")


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


def _most_names(text: str) -> int | None:
    """Returns an upper bound of the number of fields that JSON text names; None where it is not known."""
    # A quote and a colon: the end of a name, or inside a text. A reader that is called for each object takes as long as
    # all of the parsing (2026-11), so names are read one by one only where this number is not that of the fields found.
    return None if any(f'"{blank}' in text for blank in " \n\r\t") else text.count('":')


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


def _names_in(value: Json) -> int:
    """Returns the number of fields of all objects in a value, after checking its depth."""
    # Level by level, with types collected at C speed: most of a manifest is long lists of counts.
    names, level = 0, [value]
    for _ in range(DEPTH_LIMIT):
        objects = [each for each in level if type(each) is dict]
        names += sum(map(len, objects))
        held = (*map(dict.values, objects), *(each for each in level if type(each) is list))
        level = [
            child
            for each in held
            if not _CONTAINERS.isdisjoint(map(type, each))
            for child in each
            if type(child) in _CONTAINERS
        ]
        if not level:
            return names
    raise DumpError(f"the JSON text is nested deeper than {DEPTH_LIMIT} levels")


def _shortened(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
