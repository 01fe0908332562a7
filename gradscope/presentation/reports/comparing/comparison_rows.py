"""The rows of a comparison are made lines of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.comparison import ComparisonRow
from gradscope.comparison.metrics.metrics import METRICS, MetricKind
from gradscope.dump.manifest.json_text import as_float
from gradscope.presentation.tables.dump_rows import family_rank
from gradscope.presentation.tables.table import Column, Kind, Line, column

NAME: Final = Column(heading="name", kind="name")
_SHOWN_AS: Final[Mapping[MetricKind, Kind]] = MappingProxyType(
    {"number": "number", "share": "share", "count": "count", "flag": "text", "index": "shape", "element": "number"}
)
_METRICS: Final = MappingProxyType({spec.name: spec for spec in METRICS})


def _metric(name: str, priority: int, *, only_nonzero: bool = False) -> Column:
    """Returns the column of a metric, of the kind that the table of all metrics has."""
    return column(name, priority, _SHOWN_AS[_METRICS[name].kind], only_nonzero=only_nonzero)


#: Metrics that say nothing about two tensors that differ by more than the reference's own norm.
_BELOW_ONE: Final = ("growth", "max_rel", "mismatch", "ulp_max", "ulp_share", "sqnr_db", "bit_equal")
#: What is known of `rel_l2` where a dump has no elements.
_AT_LEAST: Final = "rel_l2 at least"
#: The metric `floor`, which is a norm in the unit of the elements, beside a `rel_l2` which has none.
_FLOOR: Final = "floor of l2(d)"
COLUMNS: Final = (
    column("status", 0, "words"),
    _metric("rel_l2", 0),
    Column(heading=_AT_LEAST, kind="number"),
    column("tolerance", 1),
    column("rule", 1, "text"),
    _metric("growth", 1),
    _metric("noise", 1),
    _metric("spread", 1),
    _metric("random", 2),
    _metric("bias", 1),
    _metric("1-cos", 6),
    _metric("norm_ratio", 4),
    _metric("max_abs", 2),
    _metric("max_rel", 7),
    _metric("mismatch", 3),
    _metric("ulp_max", 8),
    _metric("ulp_share", 9),
    _metric("sign_flip", 5),
    _metric("flipped", 5),
    Column(heading=_FLOOR, kind="number", priority=6),
    _metric("sqnr_db", 9),
    _metric("nonfinite_mismatch", 1, only_nonzero=True),
    _metric("masked", 9, only_nonzero=True),
    _metric("bit_equal", 9),
    column("matched_by", 4, "text"),
    column("counterpart", 1, "text"),
    column("made_by", 5, "text"),
)


def in_tree_order(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Returns rows in execution order, each composite layer before its parts."""
    # The output of a composite layer is computed last.
    begins: dict[str, int] = {}
    for row in rows:
        path = row.name.split("/")
        for length in range(1, len(path) + 1):
            scope = "/".join(path[:length])
            begins[scope] = min(row.index, begins.get(scope, row.index))
    return sorted(rows, key=lambda row: (begins[row.name], row.name.count("/"), row.index))


def family_order(family: str) -> tuple[bool, int]:
    """Returns the rank of a family's table: values before gradients, and otherwise in execution order."""
    return naming.is_gradient(family), family_rank(family)


def line_of(row: ComparisonRow) -> Line:
    """Returns the line of a row: its name, and a cell for each of `COLUMNS`."""
    values = row.to_json()
    if row.matched_by == "name":  # the usual way, which is not shown
        del values["matched_by"]
    if row.rule:  # a rule is not a number, and would change the notation of the column's numbers
        values["rule"] = values.pop("tolerance")
    if "floor" in values:
        values[_FLOOR] = values.pop("floor")
    if has_bound(row):
        values[_AT_LEAST] = row.needed
    if as_float(values.get("rel_l2", 0.0)) > 1:
        values = {name: value for name, value in values.items() if name not in _BELOW_ONE}
    return Line(cells=(row.name, *(each.cell(values) for each in COLUMNS)), keys=(naming.key_of(row.family, row.name),))


def has_bound(row: ComparisonRow) -> bool:
    """Returns whether of a row only the least `rel_l2` is known, by statistics, as where a dump has no elements."""
    return "rel_l2" not in row.metrics and row.needed is not None and 0 < row.needed < math.inf


def badness(row: ComparisonRow) -> tuple[bool, bool, float]:
    """Returns how far a row is from passing.

    A name on one side only has no number, and is less bad than any row that differs: many such names would hide those.
    """
    one_sided = row.status in ("missing", "extra") and row.counts
    return row.status == "different", one_sided, 0.0 if row.needed is None else row.needed
