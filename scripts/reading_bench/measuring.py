"""Runs the cases of the bench of reading, and writes the results as JSON and as a page."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from gradscope.dump.manifest.provenance import versions
from reading_bench.cases import Case, cases

_HEAD = """# The bench of reading

`scripts/bench reading` measures the commands that read dumps, and those that read nothing; it writes this page.
`scripts/bench reading --quick` measures small files and writes nothing; `--json` prints the figures. A figure is
a ratio where it has a unit of comparison, else seconds of one core; repetitions of a command and of what it is compared
with alternate.

"""


class Cost(Protocol):
    """The wall-clock seconds, CPU seconds and peak resident memory in MiB of a command."""

    wall: float
    cpu: float
    peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The result of one case: the figure's extremes and median, and the most resident memory in MiB."""

    what: str
    least: float
    median: float
    most: float
    limit: float
    mebibytes: float
    memory_limit: int | None


def measured(folder: Path, run: Callable[..., Cost], *, quick: bool) -> list[Figure]:
    """Measures every case.

    Args:
        folder: An empty folder.
        run: Runs a command in a folder, and exits where its exit status is none of `statuses`.
        quick: Whether files and repetitions are few.
    """
    return [_figure(case, folder, run, 2 if quick else 3) for case in cases(folder, quick=quick)]


def json_text(figures: Sequence[Figure]) -> str:
    """Returns the figures, and what they were measured with, as JSON."""
    return json.dumps({**_machine(), "figures": [asdict(each) for each in figures]}, indent=2)


def write_page(path: Path, figures: Sequence[Figure]) -> None:
    """Writes the page."""
    machine = ", ".join(f"{name} {value}" for name, value in _machine().items())
    rows = [
        f"| {each.what} | {each.least:.2f} | {each.median:.2f} | {each.most:.2f} | {each.limit:g} | {_memory(each)} |"
        for each in figures
    ]
    table = ["| figure | least | median | most | to hold | MiB resident |", "| --- " * 6 + "|", *rows]
    path.write_text(f"{_HEAD}Measured with {machine}.\n\n" + "\n".join(table) + "\n", encoding="utf-8")


def _figure(case: Case, folder: Path, run: Callable[..., Cost], repeats: int) -> Figure:
    values: list[float] = []
    memory = 0.0
    for _ in range(repeats):
        cost = run([*case.command], str(folder), statuses=(case.status,))
        unit = 1.0 if case.against is None else _time(case, run([*case.against], str(folder)))
        values.append(_time(case, cost) / unit)
        memory = max(memory, cost.peak)
    return Figure(
        what=case.what,
        least=min(values),
        median=statistics.median(values),
        most=max(values),
        limit=case.limit,
        mebibytes=memory,
        memory_limit=case.memory_limit,
    )


def _time(case: Case, cost: Cost) -> float:
    return cost.wall if case.wall else cost.cpu


def _memory(figure: Figure) -> str:
    limit = "" if figure.memory_limit is None else f" (to hold: {figure.memory_limit})"
    return f"{figure.mebibytes:.0f}{limit}"


def _machine() -> dict[str, str]:
    # What else ran takes part of the caches, and so CPU seconds.
    load = f"{os.getloadavg()[2]:.1f} on {os.cpu_count()} cores"
    named = {"gradscope": "gradscope-jax", "NumPy": "numpy", "msgspec": "msgspec"}
    found = versions(named.values())  # msgspec need not be installed
    known = {name: str(found[package]) for name, package in named.items() if package in found}
    return {**known, "Python": platform.python_version(), "a mean load of": load}
