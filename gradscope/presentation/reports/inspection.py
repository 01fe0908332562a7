"""The report of an inspection shows a model's layers with their costs, its totals, and what `--fetch` needs of it.

On a terminal it is an overview of one screen: the totals, and the costs block by block.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.naming import printable
from gradscope.naming.sizes import shown_size
from gradscope.presentation.render.document import Document, Note, Notes, fitted
from gradscope.presentation.render.screen import DOUBTFUL, Screen
from gradscope.presentation.tables.by_block.contents import layer_tree
from gradscope.presentation.tables.by_block.cost_cells import COST_CELLS
from gradscope.presentation.tables.by_block.overview import Overview, Shown
from gradscope.presentation.tables.dump_rows import Row, family_rank
from gradscope.presentation.tables.numbers import amount, count
from gradscope.presentation.tables.query import Query
from gradscope.presentation.tables.table import Column, Line, Table, column

#: Version of the JSON: it grows when a key changes its meaning or goes away.
SCHEMA: Final = 2

_NAME: Final = Column(heading="name", kind="name")
_SHAPE, *_COSTS_AND_SOURCE = COST_CELLS
_LAYERS: Final = (_SHAPE, column("dtype", 8, "text"), *_COSTS_AND_SOURCE)
_ARRAYS: Final = (
    column("shape", 1, "shape"),
    column("dtype", 2, "text"),
    column("parameters", 1, "count"),
    column("parameter_share", 3, "share"),
    column("bytes", 4, "count"),
    column("used_by", 2, "text"),
)
#: The fewest lines of the overview's table, and the most inputs that it names.
_FEWEST_BLOCKS: Final = 3
_MOST_INPUTS: Final = 6
_RANGES: Final = "name[a..b] is blocks a to b on one line, with the sums over them"
_COLUMNS: Final = MappingProxyType({naming.ACTIVATION: _LAYERS})
_TITLES: Final = MappingProxyType({naming.INPUT: "Inputs", naming.ACTIVATION: "Layers", naming.PARAM: "Parameters"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionReport:
    """An `InspectionReport` presents an inspection.

    Attributes:
        target: The model, as the user named it.
        batch_size: The number of examples to which the numbers apply; None where it is not known.
        selected: The selected rows, in the selected order.
        totals: Numbers of the complete model.
        fetch: The part of the model that a fetch needs: `needed` and `total` operations, and the `inputs`; None without
            one.
        in_order: Whether the rows are in the order of the model.
        overview: Whether a terminal shows an overview and not the tables.
    """

    target: str
    batch_size: int | None
    selected: tuple[Row, ...]
    totals: Mapping[str, Json]
    fetch: Mapping[str, Json] | None
    in_order: bool
    overview: bool = False

    def document(self, screen: Screen) -> Document:
        """Returns one table per family, and the totals last; or an overview of these."""
        families: dict[str, list[Row]] = {}
        for row in self.selected:
            families.setdefault(row.family, []).append(row)
        if self.overview and screen.width is not None and naming.ACTIVATION in families:
            return self._on_one_screen(families, screen)
        tables = (self._table(family, families[family]) for family in sorted(families, key=family_rank))
        return (*tables, Notes(notes=tuple(self._totals())))

    def _on_one_screen(self, families: Mapping[str, Sequence[Row]], screen: Screen) -> Document:
        layers = families[naming.ACTIVATION]
        number = sum(row.name != naming.OUTSIDE for row in layers)
        shown = Shown(title=f"Block by block ({number:,} layers)", cells=COST_CELLS, ranges=_RANGES)
        blocks = Overview(layer_tree(layers), shown, {})
        more = f"gradscope inspect {shlex.quote(self.target)} --full; a part: --families, --select, --depth"
        notes = Notes(notes=(*self._totals(), *_inputs(families.get(naming.INPUT, ())), Note(label="more", text=more)))
        return fitted(
            lambda room: (blocks.table(room), notes), screen, most=screen.overview_lines, fewest=_FEWEST_BLOCKS
        )

    def _table(self, family: str, rows: Sequence[Row]) -> Table:
        columns = _COLUMNS.get(family, _ARRAYS)
        number = sum(row.name != naming.OUTSIDE for row in rows)
        return Table(
            title=f"{_TITLES.get(family, family)} ({number:,})",
            columns=(_NAME, *columns),
            lines=tuple(_line(row, columns) for row in rows),
            in_order=self.in_order,
        )

    def _totals(self) -> Iterator[Note]:
        totals = _Totals(self.totals)
        size = "" if self.batch_size is None else f", batch size {self.batch_size:,}"
        yield Note(label="model", text=f"{self.target}{size}")
        yield Note(label="parameters", text=f"{count(totals['parameters'])} ({shown_size(totals['parameter_bytes'])})")
        yield Note(label="FLOPs", text=_flops(totals))
        yield Note(label="activations", text=_activations(totals))
        unused = self.totals["unused_parameters"]
        if isinstance(unused, list) and unused:
            yield Note(label="unused", text=", ".join(map(str, unused)), style=DOUBTFUL)
        if self.fetch is not None:
            yield Note(label="fetch", text=pruned_sentence(self.fetch))
        if "loops_counted_once" in self.totals:
            loops = count(totals["loops_counted_once"])
            yield Note(label="loops", text=f"{loops} whose length is known only at run time, counted as one iteration")

    def rows(self) -> list[dict[str, Json]]:
        """Returns name, family and values of each row."""
        return [row.to_json() for row in self.selected]

    def to_json(self) -> dict[str, Json]:
        """Returns rows and totals."""
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
    overview: bool = False,
) -> InspectionReport:
    """Returns the report of an inspection, with the rows that a query selects.

    Args:
        target: The model, as the user named it.
        batch_size: Number of examples; None where it is not known.
        rows: Every row, in the order of the model.
        totals: Numbers of the complete model.
        fetch: As for `InspectionReport`.
        query: The query; None selects all rows.
        overview: Whether a terminal shows an overview and not the tables.

    Returns:
        The report.

    Raises:
        UsageError: The query cannot be answered.
    """
    query = Query() if query is None else query
    return InspectionReport(
        target=target,
        batch_size=batch_size,
        selected=query(rows),
        totals=totals,
        fetch=fetch,
        in_order=query.sort is None,
        overview=overview,
    )


class _Totals:
    """`_Totals` return totals as integers."""

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


def _inputs(rows: Sequence[Row]) -> Iterator[Note]:
    """Yields the inputs' names, types and shapes as a note; only how many where they are many."""
    if len(rows) > _MOST_INPUTS:
        yield Note(label="inputs", text=f"{len(rows):,}")
    elif rows:
        named = (f"{row.name} {row.values['dtype']}{row.values['shape']}".replace(", ", ",") for row in rows)
        yield Note(label="inputs", text=", ".join(named))


def _line(row: Row, columns: Sequence[Column]) -> Line:
    values = row.values
    return Line(cells=(row.name, *(each.cell(values) for each in columns)), keys=(row.key,))


def pruned_sentence(fragment: Mapping[str, Json]) -> str:
    """Returns a sentence about the part of a program that a fetch needs.

    Args:
        fragment: `needed` and `total`, numbers of operations, and the names of the `inputs`.
    """
    inputs = fragment["inputs"]
    names = ", ".join(printable(str(name)) for name in inputs) if isinstance(inputs, list) else ""
    return f"{fragment['needed']:,} of {fragment['total']:,} operations needed; inputs needed: {names or 'none'}"
