"""The memory that `--max-memory` allows is what a run takes on top of the same command with next to no data."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.integration.command import GRADSCOPE

#: Twenty layers, whose activations and gradients are 20 kB for each row of the batch, and no memory besides.
MODEL = """
import jax, jax.numpy as jnp
def init(key): return {f"w{i}": 0.9 * jnp.eye(64) for i in range(20)}
def batch(key, size): return jnp.ones((size, 64))
def loss(variables, x):
    for i in range(20):
        with jax.named_scope(f"layer{i}"):
            x = jnp.tanh(x @ variables[f"w{i}"])
    return jnp.mean(x**2)
"""
MB = 1_000_000
ALLOWED = 30 * MB

#: What the C library and XLA keep of memory that was given back, and what differs between two runs of one command.
SLACK = 60 * MB


def test_a_run_takes_no_more_memory_than_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    few, many = (_resident_bytes(tmp_path, rows) for rows in (100, 12_000))
    assert (tmp_path / "12000.npz").stat().st_size > 4 * ALLOWED
    assert many - few < ALLOWED + SLACK


def _resident_bytes(folder: Path, rows: int) -> int:
    """Returns the most bytes of memory that a dump of so many rows has at any time."""
    arguments = ("dump", "model.py", "--batch-size", str(rows), "--max-memory", "30MB", "-o", f"{rows}.npz", "--quiet")
    with subprocess.Popen([*GRADSCOPE, *arguments], cwd=folder, stdout=subprocess.DEVNULL) as running:
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0
    return usage.ru_maxrss * 1024
