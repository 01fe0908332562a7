"""The tables of a run show one recorded step, all tensors over time, or one tensor over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.history.history_rows import TensorRow
from gradscope.history.tensor_trends import TRENDS, Trend
from gradscope.presentation.tables.over_time.sparkline import sparkline
from gradscope.presentation.tables.table import Cell, Column, Kind, Line, Table

#: Characters of a sparkline in a table.
SPARKLINE_WIDTH: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A `StepRow` has the statistics of one tensor at one step."""

    tensor: TensorRow
    stats: Mapping[str, float | int]

    def to_json(self) -> dict[str, Json]:
        """Returns name, family, statistics and source."""
        shape = self.tensor.shape
        facts: dict[str, Json] = {
            "name": self.tensor.name,
            "family": self.tensor.family,
            "shape": None if shape is None else list(shape),
            "dtype": self.tensor.dtype,
            **self.stats,
            "layer": self.tensor.layer,
            "source": self.tensor.source,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRow:
    """A `TrendRow` has the trend of one statistic of one tensor."""

    tensor: TensorRow
    column: str
    trend: Trend

    def to_json(self) -> dict[str, Json]:
        """Returns name, family, the statistic's name, and the columns of `TRENDS` that are known."""
        columns = {name: getattr(self.trend, name) for name in TRENDS}
        known = {name: value for name, value in columns.items() if value is not None and not math.isnan(value)}
        if self.trend.broken:
            known["last"] = math.nan
        return {"name": self.tensor.name, "family": self.tensor.family, "column": self.column, **known}


#: A column of the tables of a step: family, statistic, kind, priority.
_Spec = tuple[str, str, Kind, int]

_LAYERS: Final[tuple[_Spec, ...]] = (
    (naming.ACTIVATION, "mean", "number", 6),
    (naming.ACTIVATION, "rms", "number", 1),
    (naming.ACTIVATION, "zeros", "share", 3),
    (naming.ACTIVATION, "nan", "count", 1),
    (naming.ACTIVATION, "inf", "count", 1),
    (naming.ACTIVATION_GRAD, "rms", "number", 1),
    (naming.ACTIVATION_GRAD, "zeros", "share", 4),
    (naming.ACTIVATION_GRAD, "nan", "count", 1),
    (naming.ACTIVATION_GRAD, "inf", "count", 1),
)
_PARAMETERS: Final[tuple[_Spec, ...]] = (
    (naming.PARAM, "l2", "number", 1),
    (naming.PARAM_GRAD, "l2", "number", 1),
    (naming.PARAM_GRAD, "share", "share", 3),
    (naming.PARAM_GRAD, "cosine", "number", 4),
    (naming.PARAM_GRAD, "zeros", "share", 6),
    (naming.PARAM_GRAD, "nan", "count", 1),
    (naming.PARAM_GRAD, "inf", "count", 1),
    (naming.CLIPPED_GRAD, "l2", "number", 5),
    (naming.UPDATE, "l2", "number", 5),
    (naming.UPDATE, "ratio", "number", 2),
    (naming.AVERAGE, "l2", "number", 7),
)
_VALUES: Final = ("mean", "rms", "amax", "nan", "inf")
#: How families are called above their columns.
GROUPS: Final = {
    naming.ACTIVATION: "activation", naming.ACTIVATION_GRAD: "gradient", naming.PARAM: "param",
    naming.PARAM_GRAD: "gradient", naming.CLIPPED_GRAD: "clipped", naming.UPDATE: "update", naming.AVERAGE: "average",
}  # fmt: skip
_COUNTED: Final = frozenset({"nan", "inf", "zeros"})
#: The columns of the table of the noise of gradients.
NOISE_COLUMNS: Final = (
    "noise_scale", "gsnr", "variance_smoothed", "signal_smoothed", "groups", "group_size", "coupling",
)  # fmt: skip
_NOISE_KINDS: Final[Mapping[str, Kind]] = {"groups": "count", "group_size": "count"}


def step_tables(rows: Sequence[StepRow], *, in_order: bool = True) -> tuple[Table, ...]:
    """Returns the tables of one step: batch, layers, parameters with every stage on one line, the optimizer's slots.

    Args:
        rows: The rows.
        in_order: Whether they are in the order of the step.
    """
    batch = [row for row in rows if row.tensor.family == naming.INPUT]
    slots = [row for row in rows if row.tensor.family.startswith(naming.SLOT_PREFIX)]
    found = (
        _values("Batch", batch), _stages("Layers", _LAYERS, rows, in_order=in_order),
        _stages("Parameters", _PARAMETERS, rows, in_order=in_order),
        _values("The optimizer's variables", slots),
    )  # fmt: skip
    return tuple(table for table in found if table.lines)


def first_lines(tables: Sequence[Table], most: int) -> tuple[Table, ...]:
    """Returns tables with so many lines together: each in full, or else with its share of them, the first ones."""
    found = dict[int, Table]()
    for rank, at in enumerate(sorted(range(len(tables)), key=lambda at: len(tables[at].lines))):
        table, share = tables[at], max(1, most // (len(tables) - rank))
        shown = table.lines[:share]
        most -= len(shown)
        title = table.title.replace("(", f"({len(shown):,} of ", 1) if len(shown) < len(table.lines) else table.title
        found[at] = replace(table, title=title, lines=shown)
    return tuple(found[at] for at in range(len(tables)))


def trend_columns() -> tuple[Column, ...]:
    """Returns the columns of a table of trends."""
    return (
        Column(heading="tensor", kind="name"),
        Column(heading="statistic", kind="text"),  # without it, the numbers say nothing
        Column(heading="first", kind="number", priority=1),
        Column(heading="last", kind="number", priority=1),
        Column(heading="slope", kind="number", priority=3),
        Column(heading="over time", kind="text", priority=2),  # the first and the last value say most of a slope
    )


def trend_line(row: TrendRow, *, unicode: bool, sparkline_width: int = SPARKLINE_WIDTH) -> Line:
    """Returns the line of a trend."""
    return Line(
        cells=(
            row.tensor.key, row.column, _number(row.trend.first), _last(row.trend), row.trend.slope,
            sparkline(row.trend.values, sparkline_width, unicode=unicode),
        ),
        keys=(row.tensor.key,),
    )  # fmt: skip


def _last(trend: Trend) -> float | None:
    """Returns the last value as a cell: NaN where the tensor is not finite at the end, None where none is known."""
    return math.nan if trend.broken else _number(trend.last)


def trend_table(rows: Sequence[TrendRow], *, unicode: bool, in_order: bool = True) -> Table:
    """Returns the table of trends: one line for each tensor.

    Args:
        rows: The trends.
        unicode: Whether sparklines may have characters other than those of ASCII.
        in_order: Whether the trends are in the order of the step.
    """
    lines = tuple(trend_line(row, unicode=unicode) for row in rows)
    notes = (f"slope: {TRENDS['slope'][0]}",) if lines else ()
    return Table(title=f"Trends ({len(lines):,})", columns=trend_columns(), lines=lines, in_order=in_order, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """A `NoiseRow` is the noise of one parameter's gradient at a step; without a tensor, of all trained ones."""

    tensor: TensorRow | None
    noise: Mapping[str, float | int]

    def to_json(self) -> dict[str, Json]:
        """Returns the parameter's name, where it is of one, and the columns of a history that are known."""
        return {**({} if self.tensor is None else {"name": self.tensor.name}), **self.noise}


def noise_table(step: int | None, rows: Sequence[NoiseRow]) -> Table:
    """Returns the table of the noise of gradients: all parameters together first, then each.

    Args:
        step: The step that it is of; None where that is said elsewhere.
        rows: The rows.
    """
    columns = (
        Column(heading="name", kind="name"),
        *(
            Column(heading=name, kind=_NOISE_KINDS.get(name, "number"), priority=at)
            for at, name in enumerate(NOISE_COLUMNS)
        ),
    )
    lines = tuple(
        Line(
            cells=(
                "all parameters" if row.tensor is None else row.tensor.name,
                *(row.noise.get(name) for name in NOISE_COLUMNS),
            ),
            keys=() if row.tensor is None else (row.tensor.key,),
        )
        for row in rows
    )
    of_step = "" if step is None else f"of step {step}; "
    note = f"{of_step}noise_scale: examples in a batch above which a larger one hardly helps, smoothed over steps"
    title = f"Noise of gradients ({len(lines):,})"
    return Table(title=title, columns=columns, lines=lines, in_order=False, notes=(note,)).without_empty_columns()


def series_table(key: str, stats: Mapping[str, np.ndarray]) -> Table:
    """Returns the table of one tensor: one line for each recorded step."""
    names = [name for name in stats if name != "step"]
    columns = (Column(heading="step", kind="name"), *map(_over_time, names, range(len(names))))
    lines = tuple(
        Line(cells=(str(step), *(_cell(name, stats[name][at]) for name in names)), keys=(key,))
        for at, step in enumerate(stats["step"].tolist())
    )
    table = Table(title=f"{key} ({len(lines):,})", columns=columns, lines=lines, in_order=False)
    return table.without_empty_columns()


def _over_time(name: str, priority: int) -> Column:
    return _statistic(name, "count" if name in _COUNTED else "number", priority)


def _statistic(name: str, kind: Kind, priority: int, group: str = "") -> Column:
    return Column(heading=name, kind=kind, priority=priority, group=group, only_nonzero=name in _COUNTED)


def _stages(title: str, specs: Sequence[_Spec], rows: Sequence[StepRow], *, in_order: bool) -> Table:
    """Returns a table with a line for each name, in which the families of the name have columns."""
    families = {family for family, *_ in specs}
    by_name: dict[str, dict[str, StepRow]] = {}
    for row in rows:
        if row.tensor.family in families:
            by_name.setdefault(row.tensor.name, {})[row.tensor.family] = row
    columns = [_statistic(name, kind, priority, GROUPS[family]) for family, name, kind, priority in specs]
    lines = [_line(name, found, specs) for name, found in by_name.items()]
    shape = Column(heading="shape", kind="shape", priority=8)
    source = Column(heading="source", kind="text", priority=9)
    table = Table(
        title=f"{title} ({len(lines):,})",
        columns=(Column(heading="name", kind="name"), shape, *columns, source),
        lines=tuple(lines),
        in_order=in_order,
    )
    return table.without_empty_columns()


def _line(name: str, found: Mapping[str, StepRow], specs: Sequence[_Spec]) -> Line:
    first = next(iter(found.values())).tensor
    cells = [_stat(found.get(family), column, kind) for family, column, kind, _ in specs]
    return Line(
        cells=(name, first.shape, *cells, first.source), keys=tuple(row.tensor.key for row in found.values())
    )  # fmt: skip


def _stat(row: StepRow | None, column: str, kind: Kind) -> Cell:
    if row is None or column not in row.stats:
        return None
    value = row.stats[column]
    if column != "zeros":
        return int(value) if column in _COUNTED else value
    size = int(np.prod(row.tensor.shape)) if row.tensor.shape is not None else 0
    return value / size if size and kind == "share" else None


def _values(title: str, rows: Sequence[StepRow]) -> Table:
    columns = (
        Column(heading="name", kind="name"),
        *map(_over_time, _VALUES, range(len(_VALUES))),
    )
    lines = tuple(
        Line(
            cells=(row.tensor.key.partition("/")[2], *(_stat(row, name, "number") for name in _VALUES)),
            keys=(row.tensor.key,),
        )
        for row in rows
    )
    return Table(
        title=f"{title} ({len(lines):,})", columns=columns, lines=lines, in_order=False
    ).without_empty_columns()


def _cell(name: str, value: float) -> Cell:
    known = _number(value)
    return int(known) if known is not None and name in _COUNTED else known


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
