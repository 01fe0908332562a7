"""Reproductions as their users have them: scripts run in a process that has no gradscope."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: Fails on import: a script that needs gradscope does not run where this is found first.
POISON = "raise ImportError('a reproduction needs no gradscope')\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A script that has ended: its status, and the error of each array by direction and name."""

    status: int
    errors: dict[tuple[str, str], float]
    output: str


def run(script: Path) -> Ran:
    """Run a script in a process that cannot import gradscope."""
    poisoned = script.parent / "gradscope"
    poisoned.mkdir(exist_ok=True)
    (poisoned / "__init__.py").write_text(POISON)
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": str(script.parent)}, cwd="/",
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return Ran(
        status=done.returncode, errors={(line[0], line[1]): float(line[3]) for line in lines}, output=done.stdout
    )
