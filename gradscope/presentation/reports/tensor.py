"""The report of a tensor shows all its statistics, and a histogram of magnitudes as horizontal bars of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.arrays.histograms import MagnitudeHistogram
from gradscope.dump.manifest.json_text import dumps
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.screen import Screen, style_of_words
from gradscope.presentation.tables.dump_rows import Row, rows_of
from gradscope.presentation.tables.numbers import count, share
from gradscope.presentation.tables.table import Column, Line, Table
from gradscope.stats import ExtremePlaces, Finding, TensorStats
from gradscope.stats.columns import ColumnKind, base_of, column_kinds

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def bars(counts: Sequence[int], width: int, *, unicode: bool) -> list[str]:
    """Returns one bar per count; the longest has `width` characters, and only a count of zero has none.

    Args:
        counts: Not negative.
        width: Characters of the longest bar.
        unicode: Whether bars may end in eighths of a block; otherwise they are of `#`.

    Returns:
        The bars.
    """
    largest = max(counts, default=0)
    steps = 8 if unicode else 1
    lengths = [-(-count * width * steps // largest) if largest else 0 for count in counts]
    return [_blocks(length) if unicode else "#" * length for length in lengths]


def _blocks(eighths: int) -> str:
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


SCHEMA: Final = 1
#: The most lines of a histogram; float64 has two thousand octaves.
_LINES: Final = 32
_BAR_WIDTH: Final = 32
_COLUMNS: Final = (
    Column(heading="magnitude", kind="name"),
    Column(heading="count", kind="count"),
    Column(heading="share", kind="share"),
    Column(heading="", kind="text"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """A `TensorReport` presents one tensor.

    Attributes:
        path: The dump's file, as the user named it.
        row: Its row.
        stats: Its statistics; None where there are none.
        findings: The findings about it.
        places: Where its largest element is, and the first that is not finite, as far as that is known.
        zero: Why it is zero, exactly or but for rounding; "" where it is not, or is no gradient.
        absent: Why there is none, beyond the reason in the row; "" where there is one, or where no more is known.
    """

    path: str
    row: Row
    stats: TensorStats | None
    findings: tuple[Finding, ...]
    places: ExtremePlaces
    zero: str = ""
    absent: str = ""

    def document(self, screen: Screen) -> Document:
        """Returns every value by name, the histogram, and the findings."""
        kinds = column_kinds()
        values = tuple(
            Note(label=name, text=_text(self.row, name, kinds.get(base_of(name)))) for name in self.row.values
        )
        at = {"largest at": self.places.largest, "not finite at": self.places.nonfinite}
        places = (Note(label=label, text=place.text) for label, place in at.items() if place is not None)
        found = (Note(label=each.rule, text=each.why, style=style_of_words(each.rule)) for each in self.findings)
        known = {"why zero": self.zero, "why absent": self.absent}
        reason = (Note(label=label, text=naming.printable(text)) for label, text in known.items() if text)
        return (
            Notes(title=self.row.key, notes=(*values, *places, *reason)),
            *magnitude_table("Elements by magnitude", self.stats, screen),
            Notes(title="Findings", notes=tuple(found)),
            Notes(notes=(Note(label="dump", text=self.path),)),
        )

    def annotations(self) -> list[Annotation]:
        """Returns the findings next to their source lines."""
        return [
            Annotation(
                level="warning",
                title=f"gradscope: {each.rule}",
                message=f"{self.row.key} {each.why}",
                source=each.source,
            )
            for each in self.findings
        ]

    def rows(self) -> list[dict[str, Json]]:
        """Returns the one row."""
        return [self.row.to_json()]

    def to_json(self) -> dict[str, Json]:
        """Returns the row, with `octaves`: pairs of an exponent `e` and the number of magnitudes in (2^e, 2^(e+1)]."""
        row = self.row.to_json()
        if self.stats is not None and self.stats.histogram is not None:
            row["octaves"] = [[exponent, number] for exponent, number in self.stats.histogram.octaves()]
        for name, place in (("largest_at", self.places.largest), ("nonfinite_at", self.places.nonfinite)):
            if place is not None:
                row[name] = list(place.index)
        row |= {name: why for name, why in (("why_zero", self.zero), ("detail", self.absent)) if why}
        return {"schema": SCHEMA, "command": "show", "dump": self.path, "rows": [row]}


def tensor_report(
    path: str, manifest: Manifest, key: str, findings: Sequence[Finding], places: ExtremePlaces | None = None
) -> TensorReport:
    """Returns the report of one tensor of a dump.

    Args:
        path: The dump's file, as the user named it.
        manifest: Its manifest.
        key: The tensor's key, or its name where only one family has it.
        findings: The findings that `gradscope.stats.find` returned for the dump.
        places: Where the tensor's extreme elements are; None where that is not known.

    Returns:
        The report; an alias is reported with the statistics of the tensor that it is an alias of.

    Raises:
        UsageError: There is no such tensor, or several; the hint names the nearest or all of them.
        DumpError: Its statistics are malformed.
    """
    row = _found(rows_of(manifest), key)
    owner = next((entry for entry in manifest.entries if naming.key_of(entry.family, entry.name) == row.own_key), None)
    reasons = (each.why for each in manifest.causes if naming.key_of(each.family, each.name) == row.own_key)
    details = (line.detail for line in manifest.ledger.missing if naming.key_of(line.family, line.name) == row.own_key)
    return TensorReport(
        path=path,
        row=row,
        places=places or ExtremePlaces(),
        zero=next(reasons, ""),
        absent=next(details, ""),
        stats=TensorStats.from_json(owner.stats) if owner is not None and owner.stats else None,
        findings=tuple(each for each in findings if naming.key_of(each.family, each.name) in (row.key, row.own_key)),
    )


def _found(rows: Sequence[Row], key: str) -> Row:
    by_key = {row.key: row for row in rows}
    if key in by_key:
        return by_key[key]
    named = [row for row in rows if row.name == key]
    if len(named) == 1:
        return named[0]
    if named:
        families = ", ".join(naming.printable(row.key) for row in named)
        raise UsageError(f"several tensors have the name {key!r}", hint=f"give one of {families}")
    raise UsageError(f"the dump has no tensor {key!r}", hint=nearest_hint(key, list(by_key)))


def _text(row: Row, name: str, kind: ColumnKind | None) -> str:
    """Returns one value of a row as text; a count of elements with its share."""
    value = row.values[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else dumps(value)
    if kind == "share":
        return share(value)
    if not isinstance(value, int):
        return f"{value:.9g}"
    size = row.values.get("size")
    percent = f" ({share(value / size)})" if kind == "count" and isinstance(size, int) and size else ""
    return count(value) + percent


def magnitude_table(title: str, stats: TensorStats | None, screen: Screen) -> Iterator[Table]:
    """Yields the table of zeros, magnitudes by octave, and non-finite elements; nothing without elements.

    Args:
        title: The title of the table.
        stats: The statistics of the elements; None where there are none.
        screen: Where the bars are shown.
    """
    if stats is None or stats.histogram is None or not stats.size:
        return
    others = {"0": stats.zeros or 0, "inf": stats.inf or 0, "nan": stats.nan or 0}
    counts = {"0": others["0"], **dict(_octaves(stats.histogram)), "inf": others["inf"], "nan": others["nan"]}
    shown = {label: number for label, number in counts.items() if number or label not in others}
    lengths = bars(list(shown.values()), _BAR_WIDTH, unicode=screen.unicode)
    cells = zip(shown, shown.values(), (number / stats.size for number in shown.values()), lengths, strict=True)
    yield Table(
        title=title,
        columns=_COLUMNS,
        lines=tuple(Line(cells=each, keys=()) for each in cells),
        in_order=False,
    )


def _octaves(histogram: MagnitudeHistogram) -> Iterator[tuple[str, int]]:
    """Yields ranges of magnitude, closed above, with their counts: octaves, or groups of them where there are many."""
    octaves = list(histogram.octaves())
    step = -(-len(octaves) // _LINES) or 1
    for start in range(0, len(octaves), step):
        group = octaves[start : start + step]
        yield f"2^{group[0][0]} .. 2^{group[-1][0] + 1}", sum(number for _, number in group)
