"""The report of an inspection: what a model is, layer by layer, and in total.

The part of a program that was asked for, in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.naming import printable
from gradscope.naming.sizes import shown_size
from gradscope.report.render.document import Document, Remark, Remarks
from gradscope.report.render.screen import DOUBTFUL, Screen
from gradscope.report.tables.column_specs import Pick, pick
from gradscope.report.tables.dump_rows import Row, place
from gradscope.report.tables.numbers import amount, count
from gradscope.report.tables.query import Query
from gradscope.report.tables.table import Column, Line, Table

#: Version of the JSON: it grows when a key changes its meaning or goes away.
SCHEMA: Final = 1

_NAME: Final = Column(heading="name", kind="name")
_LAYERS: Final = (
    pick("shape", 3, "shape"),
    pick("dtype", 8, "text"),
    pick("turns", 6, "count"),
    pick("parameters", 1, "amount"),
    pick("parameter_share", 7, "share"),
    pick("flops", 1, "amount"),
    pick("flops_share", 2, "share"),
    pick("backward_flops", 4, "amount"),
    pick("activation_bytes", 3, "amount"),
    pick("operations", 5, "count"),
    pick("needed", 2, "count"),
    pick("source", 6, "text"),
)
_ARRAYS: Final = (
    pick("shape", 1, "shape"),
    pick("dtype", 2, "text"),
    pick("parameters", 1, "count"),
    pick("parameter_share", 3, "share"),
    pick("bytes", 4, "count"),
    pick("used_by", 2, "text"),
)
_PICKS: Final = MappingProxyType({naming.ACTIVATION: _LAYERS})
_TITLES: Final = MappingProxyType({naming.INPUT: "Inputs", naming.ACTIVATION: "Layers", naming.PARAM: "Parameters"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionReport:
    """What is reported of an inspection.

    Attributes:
        target: The model, as the user named it.
        batch_size: Number of examples that the numbers are for; None where it is not known.
        selected: The rows asked for, in the order asked for.
        totals: Numbers about the whole model.
        fetch: Which part of it a fetch needs: `needed` and `total` operations, and the `inputs`; None without one.
        in_order: Whether the rows stand in the order of the model.
    """

    target: str
    batch_size: int | None
    selected: tuple[Row, ...]
    totals: Mapping[str, Json]
    fetch: Mapping[str, Json] | None
    in_order: bool

    def document(self, screen: Screen) -> Document:  # noqa: ARG002 - the same on every screen
        """One table per family, and the totals last."""
        families: dict[str, list[Row]] = {}
        for row in self.selected:
            families.setdefault(row.family, []).append(row)
        tables = (self._table(family, families[family]) for family in sorted(families, key=place))
        return (*tables, Remarks(remarks=tuple(self._totals())))

    def _table(self, family: str, rows: Sequence[Row]) -> Table:
        picks = _PICKS.get(family, _ARRAYS)
        return Table(
            title=f"{_TITLES.get(family, family)} ({len(rows):,})",
            columns=(_NAME, *(each.column for each in picks)),
            lines=tuple(_line(row, picks) for row in rows),
            in_order=self.in_order,
        )

    def _totals(self) -> Iterator[Remark]:
        totals = _Totals(self.totals)
        size = "" if self.batch_size is None else f", batch size {self.batch_size:,}"
        yield Remark(label="model", text=f"{self.target}{size}")
        yield Remark(
            label="parameters", text=f"{count(totals['parameters'])} ({shown_size(totals['parameter_bytes'])})"
        )
        yield Remark(label="FLOPs", text=_flops(totals))
        yield Remark(label="activations", text=_activations(totals))
        unused = self.totals["unused_parameters"]
        if isinstance(unused, list) and unused:
            yield Remark(label="unused", text=", ".join(map(str, unused)), style=DOUBTFUL)
        if self.fetch is not None:
            yield Remark(label="fetch", text=fragment_sentence(self.fetch))
        if "loops_counted_once" in self.totals:
            loops = count(totals["loops_counted_once"])
            yield Remark(label="loops", text=f"{loops} of a length that only running tells, counted as one turn")

    def rows(self) -> list[dict[str, Json]]:
        """Name, family and values of each row."""
        return [row.to_json() for row in self.selected]

    def to_json(self) -> dict[str, Json]:
        """Rows and totals."""
        return {
            "schema": SCHEMA,
            "command": "inspect",
            "target": self.target,
            "batch_size": self.batch_size,
            "totals": dict(self.totals),
            "rows": list(self.rows()),
            **({} if self.fetch is None else {"fetch": dict(self.fetch)}),
        }


def inspection_report(
    target: str,
    batch_size: int | None,
    rows: Sequence[Row],
    totals: Mapping[str, Json],
    *,
    fetch: Mapping[str, Json] | None = None,
    query: Query | None = None,
) -> InspectionReport:
    """What an inspection has to say about the rows that a query asks for.

    Args:
        target: The model, as the user named it.
        batch_size: Number of examples; None where it is not known.
        rows: Every row, in the order of the model.
        totals: Numbers about the whole.
        fetch: As for `InspectionReport`.
        query: Which rows; all where None.

    Raises:
        UsageError: The query cannot be answered.
    """
    asked = Query() if query is None else query
    return InspectionReport(
        target=target,
        batch_size=batch_size,
        selected=asked(rows),
        totals=totals,
        fetch=fetch,
        in_order=asked.sort is None,
    )


class _Totals:
    """Totals as the numbers that they are."""

    def __init__(self, totals: Mapping[str, Json]) -> None:
        self._totals = totals

    def __getitem__(self, name: str) -> int:
        value = self._totals[name]
        assert isinstance(value, int)
        return value

    def __contains__(self, name: str) -> bool:
        return name in self._totals


def _flops(totals: _Totals) -> str:
    forward = f"{amount(totals['flops'])} forward"
    if "backward_flops" not in totals:
        return f"{forward}; reverse mode does not get through to every parameter"
    return f"{forward}, {amount(totals['backward_flops'])} backward"


def _activations(totals: _Totals) -> str:
    layers = f"{shown_size(totals['activation_bytes'])} of layer outputs"
    if "residual_bytes" not in totals:
        return layers
    return f"{layers}, {shown_size(totals['residual_bytes'])} kept for the backward pass"


def _line(row: Row, picks: Sequence[Pick]) -> Line:
    return Line(cells=(row.name, *(each.cell(row.values) for each in picks)), keys=(row.key,))


def fragment_sentence(fragment: Mapping[str, Json]) -> str:
    """What a fetch needs.

    Args:
        fragment: `needed` and `total`, numbers of operations, and the names of the `inputs`.
    """
    inputs = fragment["inputs"]
    names = ", ".join(printable(str(name)) for name in inputs) if isinstance(inputs, list) else ""
    return f"{fragment['needed']:,} of {fragment['total']:,} operations needed; inputs needed: {names or 'none'}"
