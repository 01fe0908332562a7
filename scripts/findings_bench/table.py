"""Writes the page with what is found in the cases of the bench."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from findings_bench.outcomes import FAULTS, HEALTHY, outcomes
from gradscope.stats import Finding

#: Of the held-out cases, what the rules found when they were run on them for the first time.
FIRST_RUN = (
    "When the rules were run on the held-out cases for the first time, they found 29 of 30 faults, and one finding in "
    "21 healthy runs. `h-half-underflow` was told as `zero-grad`, and the underflow was the second finding; the binary "
    "classification was told as `exploding`, because after 50 steps its last layer multiplied the signal by 10.2. Both "
    "have been repaired since, so that the tables below are no longer of unseen cases."
)

_HEAD = """# The bench of findings

`scripts/bench findings` runs healthy models, in which nothing may be found, and models with a planted fault, of which
the first finding has to be the fault: the right rule, in the right layer. It writes this page. The thresholds in
[Findings](findings.md) are those that it supports.

The faults and what is expected of each were written before any threshold was chosen. The *held-out* cases were written
afterwards, and no threshold was set on them.

"""


def write(path: Path, tell: Callable[[str], None], jobs: int = 1) -> None:
    """Runs every case and writes the page.

    Args:
        path: The page.
        tell: Receives a line for each case.
        jobs: The number of processes.
    """
    found = outcomes(tell, jobs)
    (healthy, held_healthy), (faulty, held_faulty) = HEALTHY, FAULTS
    sections = [
        _healthy(healthy, found),
        _faulty(faulty, found),
        f"## Held-out cases\n\n{FIRST_RUN}\n",
        _healthy(held_healthy, found),
        _faulty(held_faulty, found),
    ]
    path.write_text(_HEAD + "\n".join(sections), encoding="utf-8")


def _healthy(title: str, found: Mapping[str, Sequence[Finding]]) -> str:
    cases = HEALTHY[title]
    rows = [(case.name, str(len(found[case.name])), _first(found[case.name])) for case in cases]
    total = sum(len(found[case.name]) for case in cases)
    sentence = f"{total} findings in {len(cases)} healthy runs."
    return f"## {title}\n\n{sentence}\n\n{_table(('model', 'findings', 'the first'), rows)}"


def _faulty(title: str, found: Mapping[str, Sequence[Finding]]) -> str:
    cases = FAULTS[title]
    right = [case.is_found(found[case.name]) for case in cases]
    rows = [
        (case.name, case.planted, f"{' or '.join(case.rules)} in `{case.layers}`", _first(found[case.name]),
         "yes" if first else "no")
        for case, first in zip(cases, right, strict=True)
    ]  # fmt: skip
    sentence = f"{sum(right)} of {len(cases)} faults are the first finding."
    heading = ("case", "planted", "expected", "first finding", "right")
    return f"## {title}\n\n{sentence}\n\n{_table(heading, rows)}"


def _first(findings: Sequence[Finding]) -> str:
    return f"`{findings[0].rule}` in `{findings[0].name}`" if findings else "none"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (heading, ["---"] * len(heading), *rows)
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
