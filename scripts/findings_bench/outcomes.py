"""Runs the cases, several processes at a time, and keeps what was found, so that a run that ends goes on where it was.

What is kept is of one state of the program: a changed line of the package, of the cases or of the models, or another
version of JAX, starts anew.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import jax

from findings_bench import (
    choices,
    faults_paths,
    faults_values,
    healthy_frameworks,
    healthy_plain,
    held_out_faults,
    held_out_healthy,
    inner_functions,
    margins,
    recent_models,
    stopped_parts,
)
from findings_bench.cases import Case, Fault, Healthy, findings_of
from gradscope.stats import Finding

ROOT: Final = Path(__file__).resolve().parents[2]
#: What the outcome of a case depends on.
_SOURCES: Final = ("gradscope", "scripts/findings_bench", "models")

#: The healthy models and the faults, by title.
HEALTHY: Final[Mapping[str, Sequence[Healthy]]] = {
    "Healthy models": (
        *healthy_plain.HEALTHY,
        *healthy_frameworks.HEALTHY,
        *inner_functions.HEALTHY,
        *choices.HEALTHY,
        *margins.HEALTHY,
        *recent_models.HEALTHY,
        *stopped_parts.HEALTHY,
    ),
    "Held-out healthy models": held_out_healthy.HEALTHY,
}
FAULTS: Final[Mapping[str, Sequence[Fault]]] = {
    "Planted faults": (
        *faults_values.FAULTS,
        *faults_paths.FAULTS,
        *inner_functions.FAULTS,
        *choices.FAULTS,
        *margins.FAULTS,
        *stopped_parts.FAULTS,
    ),
    "Held-out faults": held_out_faults.FAULTS,
}


def every_case() -> dict[str, Case]:
    """Returns all cases by name."""
    cases = [case for group in (*HEALTHY.values(), *FAULTS.values()) for case in group]
    return {case.name: case for case in cases}


def outcomes(tell: Callable[[str], None], jobs: int) -> dict[str, list[Finding]]:
    """Returns what is found in each case, by its name; those that an earlier run of the same program had are read.

    Args:
        tell: Receives a line for each case.
        jobs: The number of processes.
    """
    kept = Path(tempfile.gettempdir()) / f"gradscope-findings-{_digest()}.jsonl"
    known, cases = dict(_read(kept)), every_case()
    tell(f"{len(known)} of {len(cases)} cases are known already, from {kept}")
    waiting = [name for name in cases if name not in known]
    if waiting:
        # Each process is started anew: a fork of one in which JAX has threads may hang.
        with multiprocessing.get_context("spawn").Pool(jobs) as pool, kept.open("a", encoding="utf-8") as file:
            for name, found in pool.imap_unordered(_outcome, waiting):
                file.write(json.dumps({"name": name, "findings": found}) + "\n")
                file.flush()
                tell(f"{len(found)} in {name}")
        known = dict(_read(kept))
    return {name: known[name] for name in cases}


def _outcome(name: str) -> tuple[str, list[list[str]]]:
    findings = findings_of(every_case()[name].run().manifest())
    return name, [[each.rule, each.family, each.name, each.why] for each in findings]


def _read(kept: Path) -> Iterator[tuple[str, list[Finding]]]:
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    for case in map(json.loads, lines):
        found = (dict(zip(("rule", "family", "name", "why"), each, strict=True)) for each in case["findings"])
        yield case["name"], [Finding(**each, source=None, iteration=()) for each in found]


def _digest() -> str:
    digest = hashlib.sha256(jax.__version__.encode())
    for path in sorted(path for folder in _SOURCES for path in (ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
