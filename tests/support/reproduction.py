"""Reproductions as their users have them: scripts run where there is no gradscope."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

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
    return _ran(done.returncode, done.stdout, done.stderr)


def run_here(script: Path) -> Ran:
    """Run a script in this process, which has imported JAX, and has no gradscope meanwhile."""
    output, errors, status = io.StringIO(), io.StringIO(), 0
    x64 = jax.config.jax_enable_x64
    with redirect_stdout(output), redirect_stderr(errors), _without_gradscope():
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            jax.config.update("jax_enable_x64", x64)  # which every script sets
    return _ran(status, output.getvalue(), errors.getvalue())


@contextmanager
def _without_gradscope() -> Iterator[None]:
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "gradscope"}
    sys.modules.update(dict[str, Any].fromkeys(ours))  # None is what Python takes for a module that is not there
    try:
        yield
    finally:
        sys.modules.update(ours)


def _ran(status: int, output: str, errors: str) -> Ran:
    assert not errors, errors
    lines = [line.split() for line in output.splitlines()]
    at = [line.index("rel_l2") for line in lines]
    found = {(line[0], line[at - 1]): float(line[at + 1]) for line, at in zip(lines, at, strict=True)}
    return Ran(status=status, errors=found, output=output)
