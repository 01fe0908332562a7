"""A machine on which JAX cannot work says so in one line, before anything is traced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from gradscope.errors import MachineError
from gradscope.cli.running.starting_jax.jax_setup import backend_ready
try:
    backend_ready()
    print("ready")
except MachineError as error:
    print(error)
    print(error.hint)
"""


def outcome(folder: Path, **environment: str) -> str:
    """What a fresh interpreter says about its backend; it imports from `folder` first."""
    command = [sys.executable, "-c", PROGRAM]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | environment
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True).stdout


def test_a_cpu_is_enough(tmp_path: Path) -> None:
    assert outcome(tmp_path, JAX_PLATFORMS="cpu") == "ready\n"


def test_a_missing_platform_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    said = outcome(tmp_path, JAX_PLATFORMS="cuda")
    if said == "ready\n":
        pytest.skip("CUDA is installed here")
    assert said.startswith("JAX has no device for JAX_PLATFORMS='cuda'; installed: cpu")


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("RuntimeError('jaxlib is version 0.1, but this version of jax requires 0.2')", "jaxlib is version 0.1, but"),
        ("ModuleNotFoundError('jax requires jaxlib to be installed')", "jax requires jaxlib"),
        ("AttributeError(\"module 'numpy' has no attribute 'exceptions'\")", "no attribute 'exceptions'"),
    ],
)
def test_versions_that_do_not_fit_are_named(tmp_path: Path, raised: str, message: str) -> None:
    (tmp_path / "jax.py").write_text(f"raise {raised}")
    said = outcome(tmp_path)
    assert said.startswith("JAX cannot be imported (Python 3.")
    assert message in said


def test_a_lack_of_memory_is_no_reason_to_install_anything(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ImportError('libjax.so: failed to map segment from shared object')")
    assert outcome(tmp_path).splitlines()[1] == "allow this process more memory (ulimit -v)"
