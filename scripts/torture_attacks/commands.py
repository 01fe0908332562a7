"""Runs the command line of this checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

GRADSCOPE = [sys.executable, "-P", "-m", "gradscope"]


def losses(folder: Path, name: str = "dump.npz") -> str:
    """Returns the loss that a dump states; "" where it cannot be read."""
    done = subprocess.run([*GRADSCOPE, "show", name, "--format", "json"], cwd=folder, check=False, capture_output=True)
    return str(json.loads(done.stdout).get("loss")) if done.returncode == 0 else ""


def finish(arguments: list[str], folder: Path) -> None:
    """Runs a command to its end."""
    subprocess.run([*GRADSCOPE, *arguments], cwd=folder, check=True, capture_output=True)
