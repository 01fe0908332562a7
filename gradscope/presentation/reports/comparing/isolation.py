"""The report of an isolated comparison shows both verdicts, then the layers that add error themselves.

A layer's `forward` and `vjp` are the smallest tolerances on `rel_l2` that would pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.comparison import Comparison
from gradscope.comparison.diagnosis.clauses import different_values_given
from gradscope.comparison.follow_ups.isolation import Isolation, LocalRow
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.record import Json
from gradscope.naming.wording import counted, joined_lines
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.for_ci.junit import Case, Suite
from gradscope.presentation.render.screen import BAD, Screen
from gradscope.presentation.reports.comparing.comparison import VERDICT_STYLES
from gradscope.presentation.reports.comparing.run_notes import verdict_annotation
from gradscope.presentation.reports.comparing.tensor_cases import suite_of
from gradscope.presentation.tables.over_time.repeated_names import NUMBERS, repeated
from gradscope.presentation.tables.table import Column, Line, Table, column

#: The number of left-out values that a terminal shows.
_LEFT_OUT: Final = 10
_NAME: Final = Column(heading="name", kind="name")
_COLUMNS: Final = (
    column("status", 0, "words"),
    column("forward", 0),
    column("forward_tolerance", 2, "text"),
    column("vjp", 0),
    column("vjp_tolerance", 2, "text"),
    column("vjp_tensor", 3, "text"),
    column("shared_with", 1, "words"),
    column("source", 1, "text"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport:
    """An `IsolationReport` presents a comparison and the isolation that followed it.

    Attributes:
        comparison: The comparison of the dumps.
        isolation: The error of each layer by itself.
        everything: Whether the document has the layers without an error, too.
    """

    comparison: Comparison
    isolation: Isolation
    everything: bool = False

    def document(self, screen: Screen) -> Document:  # noqa: ARG002 - the same on every screen
        """Returns both verdicts, the layers, the reasons, the origins of arguments, and what was left out."""
        judged = ((self.comparison.verdict, self.comparison.sentence), (self.isolation.verdict, self._layer_by_layer()))
        verdicts = tuple(Note(label=verdict, text=text, style=VERDICT_STYLES[verdict]) for verdict, text in judged)
        return (
            Notes(notes=verdicts),
            *self._tables(),
            Notes(title="Reasons", notes=tuple(self._reasons())),
            Notes(title="Arguments", notes=tuple(self._arguments())),
            Notes(notes=tuple(self._not_judged()), at_most=_LEFT_OUT),
            Notes(notes=tuple(self._outlook())),
        )

    def _not_judged(self) -> Iterator[Note]:
        """Yields the values that were not compared, those of one reason whose names repeat together."""
        reasons: dict[str, list[str]] = {}
        for each in self.isolation.left_out:
            reasons.setdefault(each.why, []).append(each.name)
        for why, names in reasons.items():
            for name, places in repeated(list(dict.fromkeys(names)), NUMBERS):
                number = f" ({len(places):,} of them)" if len(places) > 1 else ""
                yield Note(label="not judged", text=f"{name}{number}: {why}")

    def annotations(self) -> list[Annotation]:
        """Returns both verdicts, and the layers that add error themselves next to their source lines."""
        layers = [
            Annotation(
                level="error",
                title="gradscope: layer adds error",
                message=f"{row.name} differs by itself, on the reference's inputs and cotangents",
                source=row.source,
            )
            for row in self.isolation.rows
            if row.differs
        ]
        return [
            *layers,
            verdict_annotation(self.comparison.verdict, self.comparison.sentence),
            verdict_annotation(self.isolation.verdict, self._layer_by_layer()),
        ]

    def suites(self) -> list[Suite]:
        """Returns the comparison as a suite of tests, and the layers by themselves as another one."""
        cases = [
            Case(
                group="layer",
                name=row.name,
                ending="failure" if row.differs else "passed",
                why="differs by itself, on the reference's inputs and cotangents" if row.differs else "",
                kind="different",
            )
            for row in self.isolation.rows
        ]
        found = self.isolation
        layers = Suite(name="layer by layer", sentence=self._layer_by_layer(), verdict=found.verdict, cases=cases)
        return [suite_of(self.comparison, "comparison"), layers]

    def rows(self) -> list[dict[str, Json]]:
        """Returns every layer, also those without an error."""
        return [row.to_json() for row in self.isolation.rows]

    def to_json(self) -> dict[str, Json]:
        """Returns the comparison, with the layers' own errors under `isolation`."""
        return {**self.comparison.to_json(), "isolation": self.isolation.to_json(self._first(), self._given())}

    def _layer_by_layer(self) -> str:
        return f"Layer by layer: {self.isolation.sentence(self._first(), self._given())}"

    def _given(self) -> str:
        return different_values_given(self.comparison.rows)

    def _first(self) -> ComparisonRow | None:
        """Returns what first differs between the dumps, backward where they agree forward; None for nothing."""
        first = self.comparison.first_divergence
        return first.forward or first.backward

    def _tables(self) -> Iterator[Table]:
        shown = self.isolation.rows if self.everything else self.isolation.different
        of_all = f"{len(shown):,} of {len(self.isolation.rows):,}"
        if shown:
            yield Table(
                title=f"Layers on the reference's inputs and cotangents ({of_all})",
                columns=(_NAME, *_COLUMNS),
                lines=tuple(map(_line, shown)),
            )

    def _reasons(self) -> Iterator[Note]:
        """Yields the reasons why layers differ that no number can show."""
        for layer in self.isolation.different:
            for row in (layer.forward, layer.vjp):
                if row is not None and row.status == "different" and row.needed == math.inf:
                    text = f"{naming.key_of(row.family, row.name)}: {row.why}"
                    yield Note(label=layer.name, text=text, style=BAD)

    def _arguments(self) -> Iterator[Note]:
        for origin, keys in self.isolation.arguments.items():
            if keys and origin == "reference":
                yield Note(label="of the reference", text=counted(len(keys), "array"))
            elif keys:
                yield Note(label=f"the {origin}'s own", text=", ".join(keys))

    def _outlook(self) -> Iterator[Note]:
        same = len(self.isolation.rows) - len(self.isolation.different)
        if same and not self.everything:
            yield Note(label="same", text=f"{counted(same, 'layer')} (--all shows them)")


def _line(row: LocalRow) -> Line:
    values = row.to_json() | {"source": joined_lines(row.place.lines) or None}
    return Line(cells=(row.name, *(each.cell(values) for each in _COLUMNS)), keys=row.tensors)
