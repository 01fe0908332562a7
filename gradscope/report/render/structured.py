"""JSON and CSV have every value in full, for programs.

A value that does not apply is absent; null is never used. Both are safe to print: JSON is ASCII with escapes, and CSV
has names as `gradscope.naming.spreadsheet_text` shows them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.json_text import dumps, loads
from gradscope.dump.record import Json

#: The columns that come first.
_FIRST: Final = ("name", "family")

#: Numbers that are strings in JSON, and no formula.
_INFINITE: Final = frozenset({"-Infinity"})


def indented_json(value: Mapping[str, Json]) -> str:
    """Returns an object as JSON with an indentation of two spaces.

    Args:
        value: The object; NaN and infinities become strings.

    Returns:
        ASCII text, with a line feed at the end.
    """
    return json.dumps(loads(dumps(dict(value))), indent=2) + "\n"


def csv_text(rows: Sequence[Mapping[str, Json]]) -> str:
    """Returns rows as CSV with a heading: name and family first, and all other keys as they first occur.

    Args:
        rows: Values by column; a value that is absent stays empty.

    Returns:
        Lines, each with its line feed; floats as Python writes them, lists as JSON. Text that a spreadsheet would run
        as a formula has an apostrophe in front.
    """
    keys = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(_FIRST)
    columns = sorted(keys, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: Json) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        # A float that is not finite is a string in JSON; a table needs no quotes around it.
        return dumps(value).strip('"')
    return value if value in _INFINITE else naming.spreadsheet_text(value)
