"""The report of a mesh has the verdict, a line for each number of devices, and the first comparison that differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradscope.comparison.follow_ups.mesh_comparison import MeshComparison, MeshMember, MeshRun
from gradscope.dump.record import Json
from gradscope.naming.wording import counted
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.for_ci.junit import Suite
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.comparing.comparison import VERDICT_STYLES, ComparisonReport
from gradscope.presentation.reports.comparing.run_notes import verdict_annotation
from gradscope.presentation.reports.comparing.tensor_cases import tensor_cases
from gradscope.presentation.tables.table import Column, Line, Table

_COLUMNS: Final = (
    Column(heading="devices", kind="count"),
    Column(heading="axes", kind="text"),
    Column(heading="verdict", kind="words"),
    Column(heading="largest rel_l2", kind="number"),
    Column(heading="loss", kind="number"),
    Column(heading="dump", kind="text", priority=1),
)


#: What shows more of a layer in which several values are added up.
_WITHIN: Final = "--ops compares every operation, where one term of a sum may be in a relation that the sum is not in"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshReport:
    """A `MeshReport` presents a model's runs on several numbers of devices.

    Attributes:
        found: The runs and their comparisons.
        operations: Whether the dumps have every operation, and not only layers.
        everything: Whether the document has the rows that are the same, too.
        overview: Whether a terminal shows the first and the worst rows and not all of them.
    """

    found: MeshComparison
    operations: bool = False
    everything: bool = False
    overview: bool = False

    def document(self, screen: Screen) -> Document:
        """Returns the verdict, the runs, and the report of the first comparison that differs."""
        verdict, first = self.found.verdict, self.found.first_different
        judged = Notes(
            notes=(Note(label=verdict, text=self.found.sentence, style=VERDICT_STYLES[verdict]), *self._advice)
        )
        members: tuple[MeshMember | None, ...] = (None, *self.found.members)
        lines = tuple(_line(run, member) for run, member in zip(self.found.runs, members, strict=True))
        runs = Table(title=f"Runs ({len(lines):,})", columns=_COLUMNS, lines=lines, in_order=False)
        if first is None:
            return judged, runs
        numbers = f"{counted(first.devices, 'device')} against {counted(self.found.runs[0].devices, 'device')}"
        details = ComparisonReport(
            comparison=first.comparison, everything=self.everything, overview=self.overview
        ).document(screen)
        return judged, runs, Notes(title="The first that differs", notes=(Note(label="runs", text=numbers),)), *details

    @property
    def _advice(self) -> tuple[Note, ...]:
        first = self.found.first_different
        fault = None if first is None else first.fault
        advice = "" if fault is None else fault.advice
        within = fault is not None and fault.kind == "values" and not self.operations
        unused = [
            f"the program is run on {run.used} of {run.devices} devices"
            for run in self.found.runs
            if run.used < run.devices
        ]
        return (
            *((Note(label="likely", text=advice),) if advice else ()),
            *((Note(label="more", text=_WITHIN),) if within else ()),
            *(Note(label="idle", text=each) for each in unused),
        )

    def annotations(self) -> list[Annotation]:
        """Returns the verdict, at the line of the fault."""
        first = self.found.first_different
        source = None if first is None or first.fault is None else first.fault.source
        return [verdict_annotation(self.found.verdict, self.found.sentence, source)]

    def suites(self) -> list[Suite]:
        """Returns a suite of tests for each number of devices that is compared."""
        return [
            Suite(
                name=counted(member.devices, "device"),
                sentence=member.sentence,
                verdict=member.verdict,
                cases=tensor_cases(member.judged),
            )
            for member in self.found.members
        ]

    def rows(self) -> list[dict[str, Json]]:
        """Returns the rows of every comparison, each with its number of devices and with the kind of its fault."""
        faults = [{} if each.fault is None else {"fault": each.fault.kind} for each in self.found.members]
        return [
            {"devices": member.devices, **fault, **row.to_json()}
            for member, fault in zip(self.found.members, faults, strict=True)
            for row in member.comparison.rows
        ]

    def to_json(self) -> dict[str, Json]:
        """Returns the runs and the comparisons as JSON."""
        return self.found.to_json()


def _line(run: MeshRun, member: MeshMember | None) -> Line:
    axes = ", ".join(f"{axis} {size}" for axis, size in run.axes.items())
    verdict = ("reference",) if member is None else (member.verdict,)
    rows = () if member is None else member.judged
    worst = max((row.needed for row in rows if row.needed is not None), default=None)
    return Line(cells=(run.devices, axes, verdict, worst, run.loss, run.dump), keys=())
