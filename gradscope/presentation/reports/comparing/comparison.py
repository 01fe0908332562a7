"""The report of a comparison shows the verdict, then the differences of the runs, then the rows with their reasons.

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
from functools import partial
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.comparison import Comparison, ComparisonRow
from gradscope.comparison.metrics.examples.example_spread import ExampleError
from gradscope.dump.record import Json
from gradscope.naming.wording import counted
from gradscope.presentation.render.document import Document, Note, Notes, fitted
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.for_ci.junit import Suite
from gradscope.presentation.render.heat_strip import heat_strips
from gradscope.presentation.render.screen import BAD, DOUBTFUL, GOOD, Screen
from gradscope.presentation.render.structured import MadeRows
from gradscope.presentation.reports.comparing.comparison_overview import overview_tables
from gradscope.presentation.reports.comparing.comparison_rows import (
    COLUMNS,
    NAME,
    badness,
    family_order,
    has_bound,
    in_tree_order,
    line_of,
)
from gradscope.presentation.reports.comparing.row_reasons import reasons
from gradscope.presentation.reports.comparing.run_notes import extent_notes, provenance_notes, verdict_annotation
from gradscope.presentation.reports.comparing.tensor_cases import suite_of
from gradscope.presentation.tables.numbers import count
from gradscope.presentation.tables.table import Table

#: The number of reasons of one status that a terminal shows.
_REASONS_PER_STATUS: Final = 10
#: The number of names of either side that are shown where the dumps have none in common.
_SOME_NAMES: Final = 5
#: The families of what layers make.
_LAYERED: Final = (naming.ACTIVATION, naming.ACTIVATION_GRAD)
#: The most and the fewest rows of an overview.
_MOST_ROWS: Final = 12
_FEWEST_ROWS: Final = 4
VERDICT_STYLES: Final = MappingProxyType({"same": GOOD, "different": BAD, "nothing compared": DOUBTFUL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """A `ComparisonReport` presents a comparison.

    Attributes:
        comparison: The comparison.
        everything: Whether the document has the rows that are the same, too.
        worst_first: Whether tables begin with the row furthest from passing; otherwise they are in execution order.
        overview: Whether a terminal shows the first and the worst rows and not all of them.
        verbose: Whether hashes in which the runs differ are shown.
        target: What makes the candidate's model again, to propose to run its layers by themselves; "" for nothing.
    """

    comparison: Comparison
    everything: bool = False
    worst_first: bool = False
    overview: bool = False
    verbose: bool = False
    target: str = ""

    def document(self, screen: Screen) -> Document:
        """Returns verdict, provenance, tables, reasons and what would pass; or some names, where no name is common."""
        if self.overview and screen.width is not None:
            return fitted(partial(self.shortened, screen), screen, most=_MOST_ROWS, fewest=_FEWEST_ROWS)
        return self.shortened(screen, None)

    def shortened(self, screen: Screen, most: int | None) -> Document:
        """Returns the document with at most so many rows, chosen from all families; None for all rows."""
        verdict = self.comparison.verdict
        judged = Notes(
            notes=(
                Note(label=verdict, text=self.comparison.sentence, style=VERDICT_STYLES[verdict]),
                *_examples(self.comparison.examples),
            )
        )
        if verdict == "nothing compared" and not self.everything:
            return judged, Notes(notes=tuple(_unmatched_names(self.comparison.rows)))
        provenance = provenance_notes(self.comparison.provenance_differences, screen, verbose=self.verbose)
        extent = extent_notes(self.comparison.extent_differences)
        return (
            judged,
            Notes(title="The runs differ in", notes=(*extent, *provenance)),
            *heat_strips(self.comparison, screen),
            *(self.tables() if most is None else overview_tables(self.comparison, most)),
            Notes(
                title="Reasons",
                notes=tuple(reasons([row for row in self._shown() if most is None or row.counts])),
                at_most=_REASONS_PER_STATUS if most is None else 2,
            ),
            Notes(notes=tuple(self._outlook(most))),
            *(self._not_counted() if most is None else ()),
        )

    def annotations(self) -> list[Annotation]:
        """Returns the verdict, next to the source line of what it names first."""
        first = self.comparison.first_named
        source = None if first is None else first.source
        return [verdict_annotation(self.comparison.verdict, self.comparison.sentence, source)]

    def suites(self) -> list[Suite]:
        """Returns the comparison as one suite of tests."""
        return [suite_of(self.comparison, "comparison")]

    def rows(self) -> Sequence[Mapping[str, Json]]:
        """Returns every row, also those that are the same."""
        return MadeRows(ComparisonRow.to_json, self.comparison.rows)

    def to_json(self) -> dict[str, Json]:
        """Returns the comparison as JSON."""
        return self.comparison.to_json()

    def _shown(self) -> list[ComparisonRow]:
        rows = [row for row in self.comparison.rows if self.everything or row.status != "same"]
        return sorted(rows, key=badness, reverse=True) if self.worst_first else in_tree_order(rows)

    def tables(self) -> Iterator[Table]:
        """Yields a table of each family, with the rows that are shown; with all, each in its place."""
        yield from self._tables_of([row for row in self._shown() if self.everything or not _is_excused(row)])

    def _not_counted(self) -> Iterator[Table]:
        """Yields tables of what one dump has alone and need not count, behind all else: it may be most rows."""
        if not self.everything:
            yield from self._tables_of([row for row in self._shown() if _is_excused(row)], ", not counted")

    def _tables_of(self, rows: Sequence[ComparisonRow], words: str = "") -> Iterator[Table]:
        totals = Counter(row.family for row in self.comparison.rows)
        families: dict[str, list[ComparisonRow]] = {}
        for row in rows:
            families.setdefault(row.family, []).append(row)
        for family in sorted(families, key=family_order):
            yield Table(
                title=f"{family}{words} ({len(families[family]):,} of {totals[family]:,})",
                columns=(NAME, *COLUMNS),
                lines=tuple(map(line_of, families[family])),
                in_order=not self.worst_first,
            )

    def _outlook(self, most: int | None) -> Iterator[Note]:
        shown = self._shown()
        uncounted = Counter(row.status for row in shown if not row.counts and row.status != "same")
        if bounded := sum(map(has_bound, shown)):
            text = f"{counted(bounded, 'row')} of which a dump has no tensor, so that only the least rel_l2 is known"
            yield Note(label="statistics", text=text)
        alike = [row for row in self.comparison.rows if row.status == "same"]
        same = Counter(row.family for row in alike if row.compared)
        if same and not self.everything and (most is None or len(shown) == uncounted.total()):
            families = ", ".join(f"{count(same[family])} {family}" for family in sorted(same, key=family_order))
            neither = len(alike) - same.total()
            also = f", and {count(neither)} that neither run has" if neither else ""
            yield Note(label="same", text=f"{families}{also} (--all shows them)")
        if uncounted and most is not None:
            text = ", ".join(f"{count(number)} {status}" for status, number in uncounted.items())
            yield Note(label="not counted", text=f"{text} (--full has the reasons)")
        yield from _what_would_pass([row for row in self.comparison.rows if row.counts])
        layers = {row.name for row in shown if row.family in _LAYERED and row.status == "different"}
        if self.target and len(layers) > 1:
            text = f"--isolate {shlex.quote(self.target)} runs each layer by itself: only those at fault differ"
            yield Note(label="layers", text=text)
        if most is not None and shown:
            yield Note(label="more", text="--full has every row that differs, --all also those that are the same")


def _is_excused(row: ComparisonRow) -> bool:
    """Returns whether one dump has a row alone, and need not have a counterpart."""
    return row.status in ("missing", "extra") and not row.counts


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
            yield Note(label=label, text=f"{counted(len(keys), 'tensor')}: {some} (--all shows all)")


def _what_would_pass(rows: Sequence[ComparisonRow]) -> Iterator[Note]:
    """Yields the options that would make the differing rows pass, and the number of rows that no option would.

    A tolerance is only proposed up to what a default one may be, or up to a tenth: beyond that, faults pass it, too.
    """
    differing = [row for row in rows if row.status == "different" and row.judged_by_tolerance]
    needed = [row.needed for row in rows if row.needed is not None and math.isfinite(row.needed)]
    hopeless = [row for row in differing if row.needed == math.inf]
    one_sided = sum(row.status in ("missing", "extra") for row in rows)
    if len(hopeless) < len(differing):
        # One tolerance for all replaces the defaults, so it must be enough for the rows that passed by theirs, too.
        largest = max([_LARGEST_PROPOSED, *(row.tolerance for row in rows if row.tolerance is not None)])
        if max(needed) <= largest:
            which = "all rows that both dumps have" if one_sided else "all rows"
            text = f"--tol {rounded_up(max(needed))} is the smallest tolerance on rel_l2 for {which}"
            yield Note(label="would pass", text=text + (f" but {len(hopeless):,}" if hopeless else ""))
        else:
            over = counted(sum(each > largest for each in needed), "row")
            text = f"no --tol: {over} with a rel_l2 of up to {rounded_up(max(needed))}"
            yield Note(label="would pass", text=f"{text}, and so large a one hides faults")
    if hopeless:
        yield Note(label="never passes", text=f"{counted(len(hopeless), 'row')}, at any tolerance")
    if one_sided:
        text = f"--allow-missing REGEX lets pass what one dump lacks, here {count(one_sided)}"
        yield Note(label="one side only", text=text)


#: The largest tolerance that is proposed where no row is judged by a larger one: the default of the narrowest dtype.
_LARGEST_PROPOSED: Final = 0.1


def rounded_up(tolerance: float) -> str:
    """Returns the tolerance with two digits, never less than it is."""
    # The shortest spelling is rounded: the exact value of 0.002 is a little more, and would become 2.1e-3.
    rounded = Context(prec=2, rounding=ROUND_CEILING).create_decimal(Decimal(repr(tolerance)))
    return f"{rounded:.1e}".removesuffix("e+0")
