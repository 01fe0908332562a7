"""Tells of the integers of a run's batches whether they keep to what they look up: rows, values or classes.

JAX clips an index beyond a table, and `one_hot` makes zeros of a label beyond the classes, both without an error. Where
labels stand for none, as 255, that is meant, so that labels are only said to break their bound where they go up to the
number of the classes, and none is 0: they count from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from json import loads
from math import prod
from typing import Final, cast

import numpy as np

from gradscope import naming
from gradscope.history.database.schema import BOUNDS
from gradscope.history.history_reader import History
from gradscope.history.history_rows import IndexBound
from gradscope.naming import printable

_STATISTICS: Final = ("amax", "zeros")
#: How many labels there are for each class, at least, where none that is 0 among them says that there are none: of as
#: many labels of each class, one in a thousand runs has none by chance.
_FOR_EACH: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenBound:
    """A `BrokenBound` is an array of the batch that has integers beyond what they look up.

    Attributes:
        name: Its name.
        looked_up: What it looks up, as in `IndexBound`.
        rows: How many of these there are.
        most: The largest integer.
        table: The parameter that is looked up in; None where there is none.
        source: `file:line` in the user's code; None where unknown.
    """

    name: str
    looked_up: str
    rows: int
    most: int
    table: str | None = None
    source: str | None = None


def broken_bounds(history: History) -> tuple[BrokenBound, ...]:
    """Returns the integers of the recorded batches of a run that are beyond what they look up.

    Args:
        history: The run's history.

    Raises:
        DumpError: The history is damaged.
    """
    bounds = list(_stated(history))
    if not bounds:
        return ()
    series = history.columns(_STATISTICS)
    tensors = {each.name: each for each in history.tensors.values() if each.family == naming.INPUT}
    numbers = {each.name: number for number, each in history.tensors.items() if each.family == naming.INPUT}
    found: list[BrokenBound] = []
    for bound in bounds:
        recorded = series.get(numbers.get(bound.input, -1))
        largest = np.zeros(0) if recorded is None else recorded["amax"][np.isfinite(recorded["amax"])]
        if recorded is None or not largest.size:
            continue
        most, count = float(largest.max()), prod(tensors[bound.input].shape or ()) * len(largest)
        counts_from_one = most == bound.rows and not recorded["zeros"].any() and count >= _FOR_EACH * bound.rows
        if most >= bound.rows if bound.looked_up == "rows" else counts_from_one:
            found.append(
                BrokenBound(
                    name=bound.input, looked_up=bound.looked_up, rows=bound.rows, most=int(most), table=bound.table,
                    source=bound.source,
                )
            )  # fmt: skip
    return tuple(found)


def _stated(history: History) -> Iterator[IndexBound]:
    """Yields what a history states; none where it states something else, as anybody's may."""
    try:
        found = cast("object", loads(history.facts.get(BOUNDS, "[]")))
    except (ValueError, RecursionError):
        return
    for row in cast("list[object]", found) if isinstance(found, list) else []:
        match row:
            case [str(name), "rows" | "values" | "classes" as looked_up, int(rows), str() | None as table, source] if (
                isinstance(source, str | None)
            ):
                yield IndexBound(name, looked_up, rows, *(each and printable(each) for each in (table, source)))
            case _:
                pass
