"""Sections: the tables of a dump, values and their gradients side by side on one line.

There is one section per family of values, in the order of execution: inputs, layers, parameters, then what else there
is. The cells of a line are the values of at most two rows; nothing is computed here but shares of counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.report.tables.column_specs import Pick, nonfinite, pick
from gradscope.report.tables.dump_rows import Row, place, value_family
from gradscope.report.tables.table import Cell, Column, Line, Table

#: The dtype that goes without saying.
_USUAL_DTYPE: Final = "float32"
#: Reasons for a missing tensor that are no news: the user's own wish, and a dtype that has no gradient.
_EXPECTED: Final = frozenset({"filtered", "non-differentiable"})
#: The group of columns that show the gradient's row; all others show the value's.
_GRADIENT: Final = "gradient"
_NAME: Final = Column(heading="name", kind="name")
_NOTES: Final = Column(heading="notes", kind="words")

_SHAPE: Final = pick("shape", 3, "shape")
_DTYPE: Final = pick("dtype", 3, "text")
_AFTER: Final = (pick("source", 7, "text"), pick("alias_of", 9, "text"))
_LAYERS: Final = (
    pick("mean", 8, group="activation"),
    pick("std", 4, group="activation"),
    pick("rms", 1, group="activation"),
    pick("zeros", 3, "share", group="activation"),
    pick("dead", 2, "share", group="activation"),
    pick("saturated", 6, "share", group="activation", only_nonzero=True),
    *nonfinite("activation"),
    pick("fwd_gain", 5, group="activation"),
    pick("rms", 1, group=_GRADIENT),
    pick("amax", 8, group=_GRADIENT),
    pick("zeros", 6, "share", group=_GRADIENT),
    *nonfinite(_GRADIENT),
    pick("bwd_gain", 5, group=_GRADIENT),
    pick("bwd_total", 2, group=_GRADIENT),
)
_PARAMETERS: Final = (
    pick("mean", 8, group="param"),
    pick("std", 4, group="param"),
    pick("l2", 1, group="param"),
    pick("amax", 6, group="param"),
    *nonfinite("param"),
    pick("l2", 1, group=_GRADIENT),
    pick("rms", 5, group=_GRADIENT),
    pick("amax", 6, group=_GRADIENT),
    pick("zeros", 4, "share", group=_GRADIENT),
    *nonfinite(_GRADIENT),
    pick("g/w", 1, group=_GRADIENT),
)
_PARTS: Final = (
    pick("l2", 1, group=_GRADIENT),
    pick("rms", 4, group=_GRADIENT),
    pick("amax", 5, group=_GRADIENT),
    pick("zeros", 6, "share", group=_GRADIENT),
    *nonfinite(_GRADIENT),
)
_TERMS: Final = (pick("of", 2, "name", group=_GRADIENT), *_PARTS)
_OTHERS: Final = (
    pick("mean", 3),
    pick("std", 1),
    pick("min", 2),
    pick("max", 2),
    pick("zeros", 4, "share"),
    *nonfinite(),
    pick("rms", 1, group=_GRADIENT),
    pick("amax", 5, group=_GRADIENT),
    *nonfinite(_GRADIENT),
)
_PICKS: Final = MappingProxyType(
    {naming.ACTIVATION: _LAYERS, naming.PARAM: _PARAMETERS, naming.EXAMPLE_GRAD: _PARTS, naming.TERM: _TERMS}
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


@dataclass(slots=True, kw_only=True)
class _Pair:
    """The rows of one line: of a value, of its gradient, or of both."""

    value: Row | None = None
    gradient: Row | None = None

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for row in (self.value, self.gradient) if row is not None)

    def values(self, group: str) -> Mapping[str, Json]:
        """The values that a column of some group shows."""
        row = self.gradient if group == _GRADIENT else self.value
        return {} if row is None else row.values


def sections(rows: Sequence[Row], notes: Mapping[str, Sequence[str]], *, in_order: bool) -> tuple[Table, ...]:
    """The tables of some rows.

    Args:
        rows: The rows, in the order in which lines are to stand.
        notes: Words to put beside a tensor, such as the rules that found something in it, by key.
        in_order: Whether that is execution order.

    Returns:
        One table per family of values, whatever the order of lines in it; every row is in one line.
    """
    families: dict[str, dict[str, _Pair]] = {}
    for row in rows:
        pair = families.setdefault(value_family(row.family), {}).setdefault(row.name, _Pair())
        if naming.is_gradient(row.family):
            pair.gradient = row
        else:
            pair.value = row
    return tuple(_section(family, families[family], notes, in_order=in_order) for family in sorted(families, key=place))


def _section(family: str, pairs: Mapping[str, _Pair], notes: Mapping[str, Sequence[str]], *, in_order: bool) -> Table:
    picks = _PICKS.get(family, _OTHERS)
    return Table(
        title=f"{_TITLES.get(family, family)} ({len(pairs):,})",
        columns=(_NAME, *(each.column for each in (_SHAPE, _DTYPE, *picks)), _NOTES, *(each.column for each in _AFTER)),
        lines=tuple(_line(name, pair, picks, notes) for name, pair in pairs.items()),
        in_order=in_order,
    )


def _line(name: str, pair: _Pair, picks: Sequence[Pick], notes: Mapping[str, Sequence[str]]) -> Line:
    facts = pair.rows[0].values
    usual = facts.get("dtype") == _USUAL_DTYPE
    words = tuple(dict.fromkeys(word for row in pair.rows for word in _words(row, notes)))
    cells: list[Cell] = [name, _SHAPE.cell(facts), None if usual else _DTYPE.cell(facts)]
    cells += [each.cell(pair.values(each.column.group)) for each in picks]
    cells += [words or None, *(each.cell(facts) for each in _AFTER)]
    return Line(cells=tuple(cells), keys=tuple(row.key for row in pair.rows))


def _words(row: Row, notes: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """What was found in a tensor; where nothing was, why it is not there."""
    found, absent = notes.get(row.own_key, ()), row.values.get("absent")
    return found if found or absent is None or absent in _EXPECTED else (str(absent),)
