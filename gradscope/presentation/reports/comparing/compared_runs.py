"""The report of a comparison of two runs: the first step that differs, and the first tensor of each stage in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.diagnosis.runs.packed_in_runs import allow_missing
from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence
from gradscope.comparison.diagnosis.runs.run_stages import RunRow
from gradscope.dump.record import Json
from gradscope.naming import printable
from gradscope.naming.wording import counted
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.for_ci.junit import Suite
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.comparing.comparison import VERDICT_STYLES
from gradscope.presentation.reports.comparing.run_notes import provenance_notes, verdict_annotation
from gradscope.presentation.reports.comparing.tensor_cases import step_cases
from gradscope.presentation.tables.over_time.sparkline import sparkline
from gradscope.presentation.tables.table import Column, Line, Table

_WIDTH: Final = 40
#: So many gradients that are zero but for rounding are named.
_NAMED: Final = 3

_TENSOR: Final = (
    Column(heading="rel_l2 at least", kind="number", priority=1),
    Column(heading="tolerance", kind="text", priority=3),
    Column(heading="statistic", kind="text", priority=2),
    Column(heading="ref", kind="number", priority=2, pair="runs"),
    Column(heading="cand", kind="number", priority=2, pair="runs"),
)
_STAGES: Final = (
    Column(heading="stage", kind="name"),
    Column(heading="differ", kind="text", priority=3),
    Column(heading="first", kind="name"),
    *_TENSOR,
)
_ROWS: Final = (Column(heading="tensor", kind="name"), Column(heading="status", kind="words"), *_TENSOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDivergenceReport:
    """A `RunDivergenceReport` presents the comparison of two runs.

    Attributes:
        divergence: The comparison.
        everything: Whether the document has every tensor of the step, too.
        verbose: Whether hashes in which the runs differ are shown.
    """

    divergence: RunDivergence
    everything: bool = False
    verbose: bool = False

    def document(self, screen: Screen) -> Document:
        """Returns the verdict, the first difference of each stage, and the difference over the steps."""
        found = self.divergence
        judged = Notes(
            notes=(
                Note(label=found.verdict, text=found.sentence, style=VERDICT_STYLES[found.verdict]),
                *self._exchanged(),
                *self._packed(),
                *provenance_notes(found.provenance_differences, screen, verbose=self.verbose),
            )
        )
        stages = () if found.first_step is None else (self._stages(),)
        tables = (self.tensors(),) if self.everything else ()
        return judged, *stages, *tables, Notes(notes=tuple(self._extent(screen)))

    def annotations(self) -> list[Annotation]:
        """Returns the verdict; a comparison knows names and no source lines."""
        return [verdict_annotation(self.divergence.verdict, self.divergence.sentence)]

    def suites(self) -> list[Suite]:
        """Returns the tensors at the first step that differs, or at the last one, as a suite of tests."""
        found = self.divergence
        step = found.first_step if found.first_step is not None else next(iter(found.steps[-1:]), None)
        name = "runs" if step is None else f"step {step}"
        return [Suite(name=name, sentence=found.sentence, verdict=found.verdict, cases=step_cases(found.rows))]

    def rows(self) -> list[dict[str, Json]]:
        """Returns the tensors at the first step that differs, or at the last one."""
        return [row.to_json() for row in self.divergence.rows]

    def to_json(self) -> dict[str, Json]:
        """Returns the comparison as JSON."""
        return self.divergence.to_json()

    def _stages(self) -> Table:
        by_stage: dict[str, list[RunRow]] = {}
        for row in self.divergence.rows:
            by_stage.setdefault(row.stage, []).append(row)
        lines = tuple(
            Line(
                cells=(stage, _how_many(differing, len(rows)), _name(differing[0]), *_cells(differing[0])),
                keys=_keys(differing[0]),
            )
            for stage, rows in by_stage.items()
            if (differing := [row for row in rows if row.differs])
        )
        title = f"At step {self.divergence.first_step}, in the order of the step"
        return Table(title=title, columns=_STAGES, lines=lines, in_order=False).without_empty_columns()

    def _exchanged(self) -> tuple[Note, ...]:
        if not self.divergence.exchanged:
            return ()
        first, second = map(_quoted, self.divergence.exchanged)
        text = f"the reference calls {first} before {second}, and the candidate the other way round"
        return (Note(label="order", text=text),)

    def _packed(self) -> tuple[Note, ...]:
        found = self.divergence.packed
        if not found:
            return ()
        first, sides = found[0], ("reference", "candidate") if found[0].in_ref else ("candidate", "reference")
        parts = " and ".join(", ".join(map(_quoted, each)) for each in (first.parts[:-1], first.parts[-1:]))
        more = f", and so do {len(found) - 1:,} more" if len(found) > 1 else ""
        missing = any(row.differs and row.bound is None for row in self.divergence.rows)
        how = f"; --allow-missing '{allow_missing(found)}' compares all else" if missing else ""
        text = (
            f"{_quoted(first.whole)} of the {sides[0]} holds {parts} of the {sides[1]}, by their statistics{more}{how}"
        )
        return (Note(label="packed", text=text),)

    def tensors(self) -> Table:
        """Returns the table of every tensor at the first step that differs, or at the last one."""
        rows = self.divergence.rows
        lines = tuple(Line(cells=(_name(row), (row.status,), *_cells(row)), keys=_keys(row)) for row in rows)
        return Table(title=f"Tensors ({len(lines):,})", columns=_ROWS, lines=lines, in_order=False)

    def _extent(self, screen: Screen) -> list[Note]:
        found = self.divergence
        notes = [Note(label="compared", text=f"{counted(len(found.steps), 'step')} that both runs recorded")]
        if found.ref_only or found.cand_only:
            text = f"{found.ref_only:,} of the reference, {found.cand_only:,} of the candidate"
            notes.append(Note(label="not in both", text=text))
        if found.rounded:
            more = f", and {len(found.rounded) - _NAMED:,} more" if len(found.rounded) > _NAMED else ""
            text = f"{len(found.rounded):,} zero but for rounding, whose updates are no difference: "
            notes.append(Note(label="gradients", text=text + ", ".join(map(printable, found.rounded[:_NAMED])) + more))
        if any(found.largest):
            line = sparkline(found.largest, _WIDTH, unicode=screen.unicode)
            notes.append(Note(label="difference", text=f"{line}  largest rel_l2 of each step, at least"))
        return notes


def _quoted(name: str) -> str:
    return f"`{printable(name)}`"


def _name(row: RunRow) -> str:
    return row.key or row.name


def _keys(row: RunRow) -> tuple[str, ...]:
    return (row.key,) if row.key else ()


def _how_many(differing: Sequence[RunRow], total: int) -> str:
    """Returns how many tensors of a stage differ, or that only one of the runs has them."""
    statuses = {row.status for row in differing}
    side = {"missing": "reference", "extra": "candidate"}.get(differing[0].status) if len(statuses) == 1 else None
    return f"{len(differing)} of {total}" + ("" if side is None else f", only in the {side}")


def _cells(row: RunRow) -> tuple[float | str | None, ...]:
    judged_by = None if row.tolerance is None else str(row.tolerance)
    values = (row.ref_statistic, row.cand_statistic) if row.statistic else (row.ref, row.cand)
    return row.bound, judged_by, row.statistic or ("l2" if row.key else ""), *values
