"""Sections are the tables of a dump, with a value and its gradient on one line.

There is one section per family of values, in the order of execution: inputs, layers, parameters, then the others. The
cells of a line are the values of at most two rows; only shares of counts are computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.presentation.tables.dump_rows import (
    Row,
    RowColumns,
    companions,
    facts_of,
    family_rank,
)
from gradscope.presentation.tables.shown_statistics import are_units_dead
from gradscope.presentation.tables.table import Cell, Column, ColumnLines, Kind, Table, column
from gradscope.stats.columns import ColumnKind, column_kinds

#: The usual dtype, which is not shown.
_USUAL_DTYPE: Final = "float32"
#: Reasons for a missing tensor that are not shown: the user excluded it, or its dtype has no gradient.
_EXPECTED: Final = frozenset({"filtered", "non-differentiable"})
#: The group of columns that show the gradient's row; all others show the value's.
_GRADIENT: Final = "gradient"
#: The statistic that shares are of.
_SIZE: Final = "size"
_NAME: Final = Column(heading="name", kind="name")
_NOTES: Final = Column(heading="notes", kind="words")

_AFTER: Final = (column("source", 7, "text"), column("alias_of", 9, "text"))

_SHOWN_AS: Final[Mapping[ColumnKind, Kind]] = MappingProxyType(
    {"number": "number", "share": "share", "count": "count", "size": "count", "shape": "shape", "text": "text"}
)
_KINDS: Final = MappingProxyType(column_kinds())


def _statistic(
    name: str, priority: int, kind: Kind | None = None, *, group: str = "", only_nonzero: bool = False
) -> Column:
    """Returns the column of a statistic, of the kind in the table of statistics unless `kind` is set."""
    return column(name, priority, kind or _SHOWN_AS[_KINDS[name]], group=group, only_nonzero=only_nonzero)


def _nonfinite(group: str = "") -> tuple[Column, ...]:
    """Returns the columns of counts of non-finite elements, which are shown only where there are any."""
    return tuple(_statistic(name, 1, group=group, only_nonzero=True) for name in ("nan", "inf"))


_SHAPE: Final = _statistic("shape", 3)
_DTYPE: Final = _statistic("dtype", 3)
_DEAD: Final = _statistic("dead", 2, group="activation")
#: What tells where units are dead.
_LEAST: Final = _statistic("min", 0)
_LOST: Final = _statistic("zeros", 0, "share")
_PRIMITIVE: Final = column("primitive", 0, "text")
_LAYERS: Final = (
    _statistic("mean", 8, group="activation"),
    _statistic("std", 4, group="activation"),
    _statistic("rms", 1, group="activation"),
    _statistic("zeros", 3, "share", group="activation"),
    _DEAD,
    _statistic("saturated", 6, group="activation", only_nonzero=True),
    *_nonfinite("activation"),
    _statistic("fwd_gain", 5, group="activation"),
    _statistic("rms", 1, group=_GRADIENT),
    _statistic("amax", 8, group=_GRADIENT),
    _statistic("zeros", 6, "share", group=_GRADIENT),
    *_nonfinite(_GRADIENT),
    _statistic("bwd_gain", 5, group=_GRADIENT),
    _statistic("bwd_total", 2, group=_GRADIENT),
)
_PARAMETERS: Final = (
    _statistic("mean", 8, group="param"),
    _statistic("std", 4, group="param"),
    _statistic("l2", 1, group="param"),
    _statistic("amax", 6, group="param"),
    *_nonfinite("param"),
    _statistic("l2", 1, group=_GRADIENT),
    _statistic("rms", 5, group=_GRADIENT),
    _statistic("amax", 6, group=_GRADIENT),
    _statistic("zeros", 4, "share", group=_GRADIENT),
    *_nonfinite(_GRADIENT),
    _statistic("g/w", 1, group=_GRADIENT),
)
_GRADIENTS_ONLY: Final = (
    _statistic("l2", 1, group=_GRADIENT),
    _statistic("rms", 4, group=_GRADIENT),
    _statistic("amax", 5, group=_GRADIENT),
    _statistic("zeros", 6, "share", group=_GRADIENT),
    *_nonfinite(_GRADIENT),
)
_TERMS: Final = (column("of", 2, "name", group=_GRADIENT), *_GRADIENTS_ONLY)
_OTHERS: Final = (
    _statistic("mean", 3),
    _statistic("std", 1),
    _statistic("min", 2),
    _statistic("max", 2),
    _statistic("zeros", 4, "share"),
    *_nonfinite(),
    _statistic("rms", 1, group=_GRADIENT),
    _statistic("amax", 5, group=_GRADIENT),
    *_nonfinite(_GRADIENT),
)
_COLUMNS: Final = MappingProxyType(
    {naming.ACTIVATION: _LAYERS, naming.PARAM: _PARAMETERS, naming.EXAMPLE_GRAD: _GRADIENTS_ONLY, naming.TERM: _TERMS}
)
_TITLES: Final = MappingProxyType(
    {
        naming.INPUT: "Inputs",
        naming.ACTIVATION: "Layers",
        naming.PARAM: "Parameters",
        naming.EXAMPLE_GRAD: "Gradients of each example",
        naming.TERM: "Terms of gradients, by use",
        naming.STATE: "State",
        naming.AUX: "Auxiliary outputs",
        naming.UPDATE: "Updates",
        naming.TENSOR: "Tensors",
    }
)


class _Family(NamedTuple):
    """_Family has the rows of one family of values: the names in order, and the rows of values and gradients by name.

    A name that has both is there twice.
    """

    names: list[str]
    values: dict[str, Row]
    gradients: dict[str, Row]


def sections(rows: Sequence[Row], notes: Mapping[str, Sequence[str]], *, in_order: bool) -> tuple[Table, ...]:
    """Returns the tables of some rows.

    Args:
        rows: The rows, in the order of the lines.
        notes: Words to show next to a tensor, such as the rules that found something in it, by key.
        in_order: Whether that is execution order.

    Returns:
        One table per family of values; every row is in one line.
    """
    families: dict[str, _Family] = {}
    places: dict[str, tuple[list[str], dict[str, Row]]] = {}
    for row in rows:
        place = places.get(row.family)
        if place is None:
            family, _, is_gradient = companions(row.family)
            found = families.setdefault(family, _Family([], {}, {}))
            place = places[row.family] = (found.names, found.gradients if is_gradient else found.values)
        names, by_name = place
        names.append(row.name)
        by_name[row.name] = row
    return tuple(
        _section(family, families[family], notes, in_order=in_order) for family in sorted(families, key=family_rank)
    )


def _section(family: str, found: _Family, notes: Mapping[str, Sequence[str]], *, in_order: bool) -> Table:
    columns = _COLUMNS.get(family, _OTHERS)
    names = [*dict.fromkeys(found.names)]
    own, backward = ([*map(by_name.get, names)] for by_name in (found.values, found.gradients))
    first = _Read([one or other for one, other in zip(own, backward, strict=True)])
    values, gradients = _Read(own), _Read(backward)

    def rows() -> Iterator[Sequence[Row]]:
        return ([row for row in pair if row is not None] for pair in zip(own, backward, strict=True))

    # Column by column, because a call for each cell took a third of the time of `show` (2026-11).
    cells: list[Sequence[Cell]] = [
        names,
        first.cells(_SHAPE),
        [None if each == _USUAL_DTYPE else each for each in first.cells(_DTYPE)],
        *(
            _of_rectifiers(values, gradients, in_order=in_order)
            if each is _DEAD
            else (gradients if each.group == _GRADIENT else values).cells(each)
            for each in columns
        ),
        _words([*rows()], notes),
        *(first.cells(each) for each in _AFTER),
    ]
    return Table(
        title=f"{_TITLES.get(family, family)} ({len(names):,})",
        columns=(_NAME, _SHAPE, _DTYPE, *columns, _NOTES, *_AFTER),
        lines=ColumnLines(cells, lambda: (tuple([row.key for row in pair]) for pair in rows())),
        in_order=in_order,
    )


def _of_rectifiers(values: _Read, gradients: _Read, *, in_order: bool) -> Sequence[Cell]:
    """Returns the shares of dead units, where they say something: of a rectifier, or before one without a line."""
    dead, least = values.cells(_DEAD), values.cells(_LEAST)
    read = zip(dead, least, gradients.cells(_LOST), values.cells(_PRIMITIVE), strict=True)
    found = [share if are_units_dead(share, *others) else None for share, *others in read]
    if not in_order:
        return found
    # A linear output varies; where the rectifier of it has the next line, the units that are dead are there.
    behind = [*zip(found[1:], least[1:], strict=True), (None, None)]
    return [None if low != 0 and low_behind == 0 and share == share_behind else share
            for share, low, (share_behind, low_behind) in zip(found, least, behind, strict=True)]  # fmt: skip


class _Read:
    """_Read reads the facts and the statistics of rows column by column.

    Args:
        rows: A row for each line; None for a line without.
    """

    def __init__(self, rows: Sequence[Row | None]) -> None:
        self._rows = [row for row in rows if row is not None]
        self._columns = RowColumns(self._rows)
        self._present = None if len(self._rows) == len(rows) else [row is not None for row in rows]

    def cells(self, column: Column) -> Sequence[Cell]:
        """Returns the cells of a column."""
        found = column.cells(self._columns.values(column.heading), lambda: self._columns.values(_SIZE))
        if self._present is None:
            return found
        rest = iter(found)
        return [next(rest) if each else None for each in self._present]


def _words(lines: Sequence[Sequence[Row]], notes: Mapping[str, Sequence[str]]) -> Sequence[Cell]:
    """Returns for each line the findings in its tensors; of one without any, the reason why it is missing."""
    if not notes and not any(facts_of([*chain.from_iterable(lines)], "absent")):
        return [None] * len(lines)
    return [tuple(dict.fromkeys(word for row in rows for word in _words_of(row, notes))) or None for rows in lines]


def _words_of(row: Row, notes: Mapping[str, Sequence[str]]) -> Sequence[str]:
    found, (absent,) = notes.get(row.own_key, ()), facts_of([row], "absent")
    return found if found or absent is None or absent in _EXPECTED else (str(absent),)
