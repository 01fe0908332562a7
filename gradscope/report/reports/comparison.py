"""The report of a comparison: the verdict first, then the differences of the runs, then the rows with their reasons.

There is a table per family, because each is read by itself: activations show where the forward pass differs first,
their gradients where the backward pass does. The options with which the comparison would pass come last, ready to
paste.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.comparison import Comparison, ComparisonRow
from gradscope.comparison.metrics.example_spread import ExampleError
from gradscope.comparison.metrics.metrics import METRICS, MetricKind
from gradscope.dump.manifest.json_text import dumps
from gradscope.dump.record import Json
from gradscope.naming.wording import counted
from gradscope.report.render.document import Document, Note, Notes
from gradscope.report.render.heat_strip import heat_strips
from gradscope.report.render.screen import BAD, DOUBTFUL, GOOD, Screen, style_of_words
from gradscope.report.tables.dump_rows import family_rank
from gradscope.report.tables.numbers import count
from gradscope.report.tables.table import Column, Kind, Line, Table, column

#: The number of reasons of one status that a terminal shows.
_REASONS_PER_STATUS: Final = 10
#: The number of names of either side that are shown where the dumps have none in common.
_SOME_NAMES: Final = 5
_NAME: Final = Column(heading="name", kind="name")
_SHOWN_AS: Final[Mapping[MetricKind, Kind]] = MappingProxyType(
    {"number": "number", "share": "share", "count": "count", "flag": "text", "index": "shape", "element": "number"}
)
_METRICS: Final = MappingProxyType({spec.name: spec for spec in METRICS})


def _metric(name: str, priority: int, *, only_nonzero: bool = False) -> Column:
    """The column of a metric, of the kind that the table of all metrics has."""
    return column(name, priority, _SHOWN_AS[_METRICS[name].kind], only_nonzero=only_nonzero)


_COLUMNS: Final = (
    column("status", 0, "words"),
    _metric("rel_l2", 0),
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
    _metric("floor", 6),
    _metric("sqnr_db", 9),
    _metric("nonfinite_mismatch", 1, only_nonzero=True),
    _metric("bit_equal", 9),
    column("matched_by", 4, "text"),
    column("counterpart", 1, "text"),
    column("made_by", 5, "text"),
)
VERDICT_STYLES: Final = MappingProxyType({"same": GOOD, "different": BAD, "nothing compared": DOUBTFUL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """A `ComparisonReport` presents a comparison.

    Attributes:
        comparison: The comparison.
        everything: Whether the document has the rows that are the same, too.
        worst_first: Whether tables begin with the row furthest from passing; otherwise they are in execution order.
    """

    comparison: Comparison
    everything: bool = False
    worst_first: bool = False

    def document(self, screen: Screen) -> Document:
        """Returns verdict, provenance, tables, reasons and what would pass; or some names, where no name is common."""
        verdict = self.comparison.verdict
        judged = Notes(
            notes=(
                Note(label=verdict, text=self.comparison.sentence, style=VERDICT_STYLES[verdict]),
                *_examples(self.comparison.examples),
            )
        )
        if verdict == "nothing compared" and not self.everything:
            return judged, Notes(notes=tuple(_unmatched_names(self.comparison.rows)))
        provenance = tuple(map(_provenance, self.comparison.provenance_differences))
        extent = tuple(Note(label="extent", text=text) for text in self.comparison.extent_differences)
        return (
            judged,
            Notes(title="The runs differ in", notes=(*extent, *provenance)),
            *heat_strips(self.comparison, screen),
            *self._tables(),
            Notes(title="Reasons", notes=tuple(self._reasons()), at_most=_REASONS_PER_STATUS),
            Notes(notes=tuple(self._outlook())),
        )

    def rows(self) -> list[dict[str, Json]]:
        """Returns every row, also those that are the same."""
        return [row.to_json() for row in self.comparison.rows]

    def to_json(self) -> dict[str, Json]:
        """Returns the comparison as JSON."""
        return self.comparison.to_json()

    def _shown(self) -> list[ComparisonRow]:
        rows = [row for row in self.comparison.rows if self.everything or row.status != "same"]
        return sorted(rows, key=_badness, reverse=True) if self.worst_first else in_tree_order(rows)

    def _tables(self) -> Iterator[Table]:
        totals = Counter(row.family for row in self.comparison.rows)
        families: dict[str, list[ComparisonRow]] = {}
        for row in self._shown():
            families.setdefault(row.family, []).append(row)
        for family in sorted(families, key=_family_order):
            yield Table(
                title=f"{family} ({len(families[family]):,} of {totals[family]:,})",
                columns=(_NAME, *_COLUMNS),
                lines=tuple(map(_line, families[family])),
                in_order=not self.worst_first,
            )

    def _reasons(self) -> Iterator[Note]:
        for row in self._shown():
            if row.likely:
                yield Note(label="likely", text=f"{naming.key_of(row.family, row.name)} {row.likely}", style=DOUBTFUL)
            # Where the needed tolerance is the rel_l2 in the table, the reason would repeat the table.
            if row.why and ("rel_l2" not in row.metrics or row.metrics["rel_l2"] != row.needed):
                text = f"{naming.key_of(row.family, row.name)}: {row.why}"
                yield Note(label=row.status, text=text, style=style_of_words(row.status))

    def _outlook(self) -> Iterator[Note]:
        same = Counter(row.family for row in self.comparison.rows if row.status == "same")
        if same and not self.everything:
            families = ", ".join(f"{count(same[family])} {family}" for family in sorted(same, key=_family_order))
            yield Note(label="same", text=f"{families} (--all shows them)")
        yield from _what_would_pass([row for row in self.comparison.rows if row.counts])


def _examples(examples: ExampleError | None) -> Iterator[Note]:
    """Yields a note on the error in the gradients of each example: its size, and whether it is noise or bias."""
    if examples is not None:
        yield Note(label="examples", text=examples.sentence, style=DOUBTFUL if examples.systematic else GOOD)


def _unmatched_names(rows: Sequence[ComparisonRow]) -> Iterator[Note]:
    """Yields the names of either side, where no name is on both."""
    for label, status in (("reference", "missing"), ("candidate", "extra")):
        keys = [naming.key_of(row.family, row.name) for row in rows if row.status == status]
        if keys:
            some = ", ".join(keys[:_SOME_NAMES]) + (", ..." if len(keys) > _SOME_NAMES else "")
            yield Note(label=label, text=f"{counted(len(keys), 'name')}: {some} (--all shows all)")


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


def _family_order(family: str) -> tuple[bool, int]:
    """Returns the rank of a family's table: values before gradients, and otherwise in execution order."""
    return naming.is_gradient(family), family_rank(family)


def _line(row: ComparisonRow) -> Line:
    values = row.to_json()
    if row.matched_by == "name":  # the usual way, which is not shown
        del values["matched_by"]
    if row.rule:  # a rule is not a number, and would change the notation of the column's numbers
        values["rule"] = values.pop("tolerance")
    return Line(
        cells=(row.name, *(each.cell(values) for each in _COLUMNS)), keys=(naming.key_of(row.family, row.name),)
    )


def _badness(row: ComparisonRow) -> float:
    """Returns how far a row is from passing; infinite for a name on one side only."""
    if row.needed is None:
        return math.inf if row.counts else 0.0
    return row.needed


def _what_would_pass(rows: Sequence[ComparisonRow]) -> Iterator[Note]:
    """Yields the options that would make the differing rows pass, and the number of rows that no option would."""
    differing = [row for row in rows if row.status == "different" and row.judged_by_tolerance]
    needed = [row.needed for row in rows if row.needed is not None and math.isfinite(row.needed)]
    hopeless = [row for row in differing if row.needed == math.inf]
    if len(hopeless) < len(differing):
        # One tolerance for all replaces the defaults, so it must be enough for the rows that passed by theirs, too.
        text = f"--tol {rounded_up(max(needed))} is the smallest tolerance on rel_l2 for all rows"
        yield Note(label="would pass", text=text + (f" but {len(hopeless):,}" if hopeless else ""))
    if hopeless:
        yield Note(label="never passes", text=f"{counted(len(hopeless), 'row')}, at any tolerance")
    one_sided = sum(row.status in ("missing", "extra") for row in rows)
    if one_sided:
        text = f"--allow-missing REGEX lets names pass that one dump lacks, here {count(one_sided)}"
        yield Note(label="one side only", text=text)


def rounded_up(tolerance: float) -> str:
    """Returns the tolerance with two digits, never less than it is."""
    # The shortest spelling is rounded: the exact value of 0.002 is a little more, and would become 2.1e-3.
    rounded = Context(prec=2, rounding=ROUND_CEILING).create_decimal(Decimal(repr(tolerance)))
    return f"{rounded:.1e}".removesuffix("e+0")


def _provenance(difference: Mapping[str, Json]) -> Note:
    sides = [_side(difference, side) for side in ("ref", "cand")]
    return Note(label=str(difference["field"]), text=" -> ".join(sides))


def _side(difference: Mapping[str, Json], side: str) -> str:
    if side not in difference:
        return "(unknown)"
    value = difference[side]
    if isinstance(value, list):  # a command line
        return shlex.join(map(str, value))
    return value if isinstance(value, str) else dumps(value)
