"""Sections: the tables of a dump, values and their gradients side by side on one line.

There is one section per family of values, in the order of execution: inputs, layers, parameters, then what else there
is. The cells of a line are the values of at most two rows; nothing is computed here but shares of counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from gradscope import naming
from gradscope.report.rows import Row, value_family
from gradscope.report.table import Cell, Column, Kind, Line, Table

Side: TypeAlias = Literal["value", "gradient"]

#: The dtype that goes without saying.
_USUAL_DTYPE: Final = "float32"
#: Reasons for a missing tensor that are no news: the user's own wish, and a dtype that has no gradient.
_EXPECTED: Final = frozenset({"filtered", "non-differentiable"})

_TITLES: Final = MappingProxyType(
    {
        naming.INPUT: "Inputs",
        naming.ACTIVATION: "Layers",
        naming.PARAM: "Parameters",
        naming.STATE: "State",
        naming.AUX: "Auxiliary outputs",
        naming.UPDATE: "Updates",
        naming.TENSOR: "Tensors",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A column of a section: the value it shows, and of which of the two rows of a line."""

    value: str
    side: Side
    column: Column

    def cell(self, row: Row | None) -> Cell:
        """The value as a cell: a list as a tuple, a count as a share where the column wants one."""
        value = None if row is None else row.values.get(self.value)
        if isinstance(value, list):
            return tuple(map(str, value)) if self.column.kind != "shape" else tuple(_sizes(value))
        if self.column.kind == "share" and row is not None and type(value) is int:
            size = row.values.get("size")
            return value / size if isinstance(size, int) and size else None
        return None if isinstance(value, dict) else value


def _sizes(value: Iterable[object]) -> Iterable[int]:
    return (size for size in value if isinstance(size, int))


def _pick(
    value: str,
    priority: int,
    *,
    side: Side = "value",
    group: str = "",
    kind: Kind = "number",
    only_nonzero: bool = False,
) -> Pick:
    column = Column(heading=value, kind=kind, group=group, priority=priority, only_nonzero=only_nonzero)
    return Pick(value=value, side=side, column=column)


def _nonfinite(*, side: Side = "value", group: str = "") -> tuple[Pick, ...]:
    """Counts of what is not finite: next to the name in weight, and no columns where all is well."""
    return tuple(_pick(name, 1, side=side, group=group, kind="count", only_nonzero=True) for name in ("nan", "inf"))


_SHAPE: Final = (_pick("shape", 3, kind="shape"), _pick("dtype", 3, kind="text"))
_ORIGIN: Final = (_pick("source", 7, kind="text"), _pick("alias_of", 9, kind="text"))

_LAYERS: Final = (
    *_SHAPE,
    _pick("mean", 8, group="activation"),
    _pick("std", 4, group="activation"),
    _pick("rms", 1, group="activation"),
    _pick("zeros", 3, group="activation", kind="share"),
    _pick("dead", 2, group="activation", kind="share"),
    _pick("saturated", 6, group="activation", kind="share", only_nonzero=True),
    *_nonfinite(group="activation"),
    _pick("fwd_gain", 5, group="activation"),
    _pick("rms", 1, side="gradient", group="gradient"),
    _pick("amax", 8, side="gradient", group="gradient"),
    _pick("zeros", 6, side="gradient", group="gradient", kind="share"),
    *_nonfinite(side="gradient", group="gradient"),
    _pick("bwd_gain", 5, side="gradient", group="gradient"),
    _pick("bwd_total", 2, side="gradient", group="gradient"),
)

_PARAMETERS: Final = (
    *_SHAPE,
    _pick("mean", 8, group="param"),
    _pick("std", 4, group="param"),
    _pick("l2", 1, group="param"),
    _pick("amax", 6, group="param"),
    *_nonfinite(group="param"),
    _pick("l2", 1, side="gradient", group="gradient"),
    _pick("rms", 5, side="gradient", group="gradient"),
    _pick("amax", 6, side="gradient", group="gradient"),
    _pick("zeros", 4, side="gradient", group="gradient", kind="share"),
    *_nonfinite(side="gradient", group="gradient"),
    _pick("g/w", 1, side="gradient", group="gradient"),
)

_OTHERS: Final = (
    *_SHAPE,
    _pick("mean", 3),
    _pick("std", 1),
    _pick("min", 2),
    _pick("max", 2),
    _pick("zeros", 4, kind="share"),
    *_nonfinite(),
    _pick("rms", 1, side="gradient", group="gradient"),
    _pick("amax", 5, side="gradient", group="gradient"),
    *_nonfinite(side="gradient", group="gradient"),
)

_PICKS: Final = MappingProxyType({naming.ACTIVATION: _LAYERS, naming.PARAM: _PARAMETERS})
_NAME: Final = Column(heading="name", kind="name")
_NOTES: Final = Column(heading="notes", kind="words")


def sections(rows: Sequence[Row], notes: Mapping[str, Sequence[str]], *, in_order: bool) -> tuple[Table, ...]:
    """The tables of some rows.

    Args:
        rows: The rows, in the order in which lines are to stand.
        notes: Words to put beside a tensor, such as the rules that found something in it, by key.
        in_order: Whether that is execution order.

    Returns:
        One table per family of values, in the order in which the families first occur; every row is in one line.
    """
    families: dict[str, dict[str, dict[Side, Row]]] = {}
    for row in rows:
        side: Side = "gradient" if naming.is_gradient(row.family) else "value"
        families.setdefault(value_family(row.family), {}).setdefault(row.name, {})[side] = row
    return tuple(_section(family, lines, notes, in_order=in_order) for family, lines in families.items())


def _section(
    family: str, names: Mapping[str, Mapping[Side, Row]], notes: Mapping[str, Sequence[str]], *, in_order: bool
) -> Table:
    picks = _PICKS.get(family, _OTHERS)
    return Table(
        title=f"{_TITLES.get(family, family)} ({len(names):,})",
        columns=(_NAME, *(pick.column for pick in picks), _NOTES, *(pick.column for pick in _ORIGIN)),
        lines=tuple(_line(name, sides, picks, notes) for name, sides in names.items()),
        in_order=in_order,
    )


def _line(name: str, sides: Mapping[Side, Row], picks: Sequence[Pick], notes: Mapping[str, Sequence[str]]) -> Line:
    value = sides.get("value")
    rows = tuple(sides.values())
    described = _without_usual_dtype(value or rows[0])
    cells = (pick.cell(described if pick in _SHAPE else sides.get(pick.side)) for pick in picks)
    words = tuple(dict.fromkeys(word for row in rows for word in _words(row, notes)))
    origin = (pick.cell(value or rows[0]) for pick in _ORIGIN)
    return Line(cells=(name, *cells, words or None, *origin), keys=tuple(row.key for row in rows))


def _without_usual_dtype(row: Row) -> Row:
    """The row without its dtype, where that goes without saying."""
    if row.values.get("dtype") != _USUAL_DTYPE:
        return row
    return replace(row, values={name: value for name, value in row.values.items() if name != "dtype"})


def _words(row: Row, notes: Mapping[str, Sequence[str]]) -> Iterable[str]:
    yield from notes.get(row.own_key, ())
    absent = row.values.get("absent")
    if absent is not None and absent not in _EXPECTED:
        yield str(absent)
