"""JSON and CSV have every value in full, for programs.

A value that does not apply is absent; null is never used. Both are safe to print: JSON is ASCII with escapes, and CSV
has names as `gradscope.naming.spreadsheet_text` shows them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar, overload

from gradscope import naming
from gradscope.dump.manifest.json_text import dumps, loads
from gradscope.dump.record import Json

_Made = TypeVar("_Made")

#: Not `json.dumps`, which a model may have replaced by one that has no indentation, or returns bytes.
_indented_text: Final = json.JSONEncoder(indent=2).encode

#: The columns that come first.
_FIRST: Final = ("name", "family")

#: Rows whose text is made at once.
_ROWS_AT_ONCE: Final = 1_000

#: Numbers that are strings in JSON, and no formula.
_INFINITE: Final = frozenset({"-Infinity"})


class MadeRows(Sequence[Mapping[str, Json]], Generic[_Made]):
    """`MadeRows` are rows of values, each of which is made when it is requested: a dump may have very many.

    Args:
        make: Makes the row of values of one item.
        items: The items.
    """

    def __init__(self, make: Callable[[_Made], Mapping[str, Json]], items: Sequence[_Made]) -> None:
        self._make = make
        self._items = items

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Json]: ...
    @overload
    def __getitem__(self, index: slice) -> MadeRows[_Made]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Json] | MadeRows[_Made]:
        if isinstance(index, slice):
            return MadeRows(self._make, self._items[index])
        return self._make(self._items[index])

    def __len__(self) -> int:
        return len(self._items)


#: A JSON object; the rows in it may be made when they are written.
JsonObject: TypeAlias = Mapping[str, Json | Sequence[Mapping[str, Json]]]


def indented_json(value: JsonObject) -> Iterator[str]:
    """Yields an object as JSON with an indentation of two spaces, in parts.

    Args:
        value: The object; NaN and infinities become strings.

    Yields:
        Parts of ASCII text, with a line feed at the end.
    """
    before = "{"
    for name, each in value.items():
        yield f"{before}\n  {dumps(name)}: "
        yield from _list_parts(each) if isinstance(each, Sequence) and not isinstance(each, str) else [_indented(each)]
        before = ","
    yield "\n}\n" if value else "{}\n"


def _list_parts(items: Sequence[Json | Mapping[str, Json]]) -> Iterator[str]:
    before = "["
    for some in _batches(items):
        yield (
            before + _indented([dict(each) if isinstance(each, Mapping) else each for each in some])[1 : -len("\n  ]")]
        )
        before = ","
    yield "\n  ]" if items else "[]"


def _indented(value: Json) -> str:
    """Returns a value as JSON, as it is inside of an object."""
    return _indented_text(loads(dumps(value))).replace("\n", "\n  ")


def csv_text(rows: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    """Yields rows as CSV with a heading, in parts: name and family first, and all other keys as they first occur.

    Args:
        rows: Values by column; a value that is absent stays empty.

    Yields:
        Lines, each with its line feed; floats as Python writes them, lists as JSON. Text that a spreadsheet would run
        as a formula has an apostrophe in front.
    """
    keys = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(_FIRST)
    columns = sorted(keys, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    yield _csv_lines([columns])
    for some in _batches(rows):
        yield _csv_lines([[row.get(name) for name in columns] for row in some])


def _batches(rows: Sequence[_Made]) -> Iterator[Sequence[_Made]]:
    return (rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE))


def _csv_lines(lines: Iterable[Sequence[Json]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, line) for line in lines)
    return text.getvalue()


def _cell(value: Json) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        # A float that is not finite is a string in JSON; a table needs no quotes around it.
        return dumps(value).strip('"')
    return value if value in _INFINITE else naming.spreadsheet_text(value)
