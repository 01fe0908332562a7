"""This report shows one tensor in two dumps: the size of the differences, the worst elements, and the error by axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.comparison.follow_ups.tensor_diff import AxisError, ElementDifference, WorstElement
from gradscope.comparison.metrics.metrics import METRICS
from gradscope.dump.manifest.json_text import dumps
from gradscope.dump.record import Json
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.comparing.comparison import VERDICT_STYLES
from gradscope.presentation.reports.tensor import magnitude_table
from gradscope.presentation.tables.numbers import count, number, share
from gradscope.presentation.tables.table import Column, Line, Table
from gradscope.stats import TensorStats, tensor_stats

SCHEMA: Final = 1

#: Error is concentrated at one index of an axis that has more than half of it, and twice the share of an even spread.
_MOST: Final = 0.5
_TWICE: Final = 2

#: What each metric is a value of, and those that belong to the largest difference, which has them beside it.
_KINDS: Final = MappingProxyType({spec.name: spec.kind for spec in METRICS})
_OF_WORST: Final = MappingProxyType({"max_abs_index": "at", "max_abs_ref": "reference", "max_abs_cand": "candidate"})

_WORST: Final = (
    Column(heading="index", kind="name"),
    Column(heading="reference", kind="text"),
    Column(heading="candidate", kind="text"),
    Column(heading="difference", kind="number"),
)
_AXES: Final = (
    Column(heading="axis", kind="name"),
    Column(heading="size", kind="count"),
    Column(heading="worst index", kind="count"),
    Column(heading="its share", kind="share"),
    Column(heading="effective indices", kind="number"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceReport:
    """A `DifferenceReport` presents the difference of one tensor in two dumps.

    Attributes:
        ref: The reference's file, as the user named it.
        cand: The candidate's.
        difference: The difference.
    """

    ref: str
    cand: str
    difference: ElementDifference

    def document(self, screen: Screen) -> Document:
        """Returns the metrics by name, the axes of the error, the worst elements, and the differences by magnitude."""
        row = self.difference.row
        metrics = (Note(label=name, text=_metric(name, row.metrics)) for name in row.metrics if name not in _OF_WORST)
        status = Note(label=row.status, text=self._where(), style=VERDICT_STYLES.get(row.status, ""))
        return (
            Notes(title=naming.key_of(row.family, row.name), notes=(status, *metrics)),
            *self._tables(screen),
            Notes(notes=(Note(label="reference", text=self.ref), Note(label="candidate", text=self._counterpart()))),
        )

    def rows(self) -> list[dict[str, Json]]:
        """Returns the worst elements, each with the name and family of the tensor."""
        row = self.difference.row
        return [{"name": row.name, "family": row.family, **_element(worst)} for worst in self.difference.worst]

    def to_json(self) -> dict[str, Json]:
        """Returns the row, the worst elements, the axes, and the octaves of the differences with their counts."""
        stats = self._stats()
        octaves = stats.histogram.octaves() if stats.histogram is not None else ()
        return {
            "schema": SCHEMA,
            "command": "show",
            "ref": self.ref,
            "cand": self.cand,
            "rows": [self.difference.row.to_json()],
            "worst": [_element(worst) for worst in self.difference.worst],
            "axes": [_axis(axis) for axis in self.difference.axes],
            "octaves": [[exponent, number] for exponent, number in octaves],
        }

    def _stats(self) -> TensorStats:
        return tensor_stats(self.difference.magnitudes)

    def _counterpart(self) -> str:
        """Returns the candidate's file, with the tensor of it that is paired where that has another name or layout."""
        row = self.difference.row
        made = ", ".join(filter(None, (row.counterpart, row.made_by)))
        return f"{self.cand}: {made} (paired by {row.matched_by})" if made else self.cand

    def _where(self) -> str:
        places = [
            f"index {axis.worst} along axis {axis.axis} ({share(axis.share)} of it)"
            for axis in self.difference.axes
            if axis.size > 1 and axis.share > max(_MOST, _TWICE / axis.size)
        ]
        if not self.difference.axes:
            return "every element is equal"
        return f"the error is concentrated at {', '.join(places)}" if places else "the error is spread along every axis"

    def _tables(self, screen: Screen) -> Iterator[Table]:
        worst, axes = self.difference.worst, self.difference.axes
        if not worst:
            return
        yield Table(title="Along each axis", columns=_AXES, lines=tuple(map(_axis_line, axes)), in_order=False)
        yield Table(title="The worst elements", columns=_WORST, lines=tuple(map(_worst_line, worst)), in_order=False)
        yield from magnitude_table("Differences by magnitude", self._stats(), screen)


def _axis_line(axis: AxisError) -> Line:
    return Line(cells=(str(axis.axis), axis.size, axis.worst, axis.share, axis.effective), keys=())


def _worst_line(worst: WorstElement) -> Line:
    index = f"[{','.join(map(str, worst.index))}]"
    return Line(cells=(index, _digits(worst.ref), _digits(worst.cand), worst.difference), keys=())


def _digits(value: complex) -> str:
    """Returns a value with as many digits as distinguish two float32 values."""
    return f"{value:.9g}"


def _element(worst: WorstElement) -> dict[str, Json]:
    sides = {"ref": worst.ref, "cand": worst.cand}
    return {
        "index": list(worst.index),
        **{name: [value.real, value.imag] if isinstance(value, complex) else value for name, value in sides.items()},
        "difference": worst.difference,
    }


def _axis(axis: AxisError) -> dict[str, Json]:
    return {
        "axis": axis.axis,
        "size": axis.size,
        "worst": axis.worst,
        "share": axis.share,
        "effective": axis.effective,
    }


def _metric(name: str, metrics: Mapping[str, Json]) -> str:
    """Returns the value of a metric as tables have it; of the largest difference, also where it is."""
    place = ", ".join(f"{label} {_text(each, metrics[each])}" for each, label in _OF_WORST.items() if each in metrics)
    return _text(name, metrics[name]) + (f" ({place})" if name == "max_abs" and place else "")


def _text(name: str, value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return dumps(value)
    shown = {"share": share, "count": count}.get(_KINDS[name], number) if name in _KINDS else number
    return shown(value)
