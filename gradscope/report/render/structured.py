"""JSON and CSV: every value in full, for programs.

Absent means not applicable; null is never used. Both are safe to print: JSON is ASCII with escapes, and CSV has names
as `gradscope.naming.printable` shows them.
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


def indented_json(value: Mapping[str, Json]) -> str:
    """An object as JSON with an indentation of two spaces.

    Args:
        value: What to write; NaN and infinities become strings.

    Returns:
        ASCII only, with a line feed at the end.
    """
    return json.dumps(loads(dumps(dict(value))), indent=2) + "\n"


def csv_text(rows: Sequence[Mapping[str, Json]]) -> str:
    """Rows as CSV with a heading: name and family first, where rows have them, and all other keys as they first occur.

    Args:
        rows: Values by column; what is absent stays empty.

    Returns:
        Lines, each with its line feed; floats as Python writes them, lists as JSON.
    """
    keys = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(_FIRST)
    columns = sorted(keys, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(naming.printable, columns))
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: Json) -> str:
    if value is None:
        return ""
    # A float that is not finite is a string in JSON; a table needs no quotes around it.
    return naming.printable(value) if isinstance(value, str) else dumps(value).strip('"')
