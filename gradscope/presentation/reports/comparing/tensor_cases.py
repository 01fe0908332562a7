"""The rows of a comparison are made cases of tests: a tensor is one, and fails where it makes the dumps different."""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.comparison.diagnosis.runs.differing_rows import difference_of
from gradscope.comparison.diagnosis.runs.run_stages import RunRow
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming.wording import place_behind
from gradscope.presentation.render.for_ci.junit import Case, Suite
from gradscope.presentation.tables.numbers import number

_ONLY_IN = {"missing": "only in the reference", "extra": "only in the candidate"}


def suite_of(comparison: Comparison, name: str) -> Suite:
    """Returns a comparison of two dumps as a suite.

    Args:
        comparison: The comparison.
        name: What was compared.
    """
    cases = tensor_cases(comparison.rows)
    return Suite(name=name, sentence=comparison.sentence, verdict=comparison.verdict, cases=cases)


def tensor_cases(rows: Iterable[ComparisonRow]) -> list[Case]:
    """Returns the rows of a comparison of two dumps as cases, in their order."""
    return [_case(row) for row in rows]


def step_cases(rows: Iterable[RunRow]) -> list[Case]:
    """Returns the rows of a step of two runs as cases, in their order."""
    return [
        Case(
            group=row.family,
            name=row.name,
            ending="passed" if row.status == "same" else "failure" if row.counts else "skipped",
            why="" if row.status == "same" else difference_of(row),
            kind=row.status,
        )
        for row in rows
    ]


def _case(row: ComparisonRow) -> Case:
    if row.status == "same":
        return Case(group=row.family, name=row.name)
    why = _why(row)
    if not row.counts:
        return Case(group=row.family, name=row.name, ending="skipped", why=f"{why}, not counted")
    why += place_behind(why, row.source)
    return Case(group=row.family, name=row.name, ending="failure", why=why, kind=row.status)


def _why(row: ComparisonRow) -> str:
    """Returns in which way a tensor differs, and what explains it."""
    likely = f"likely it {row.likely}" if row.likely else ""
    return "; ".join(filter(None, (likely, row.why or _ONLY_IN.get(row.status) or _error(row))))


def _error(row: ComparisonRow) -> str:
    error = row.metrics.get("rel_l2")
    return "different" if error is None else f"rel_l2 {number(as_float(error))}"
