"""The names with which dumps are read, compared and judged never import JAX."""

from __future__ import annotations

import subprocess
import sys

import gradscope

#: What runs programs.
NEEDS_JAX = frozenset(
    {"CoreStatistics", "Probe", "Seen", "capture", "clip", "gradients", "save", "train_step", "value_and_grad"}
)


def test_names_for_reading_do_not_import_jax() -> None:
    names = sorted(set(gradscope.__all__) - NEEDS_JAX)
    program = (
        f"import sys, gradscope; [getattr(gradscope, name) for name in {names}]; "
        "print(sorted({'jax', 'jaxlib'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "[]\n", run.stderr
