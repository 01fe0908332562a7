"""The environment of a run is everything that it depended on and that may explain why another run differs."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any, Final

import jax

from gradscope.dump.manifest.provenance import versions
from gradscope.dump.record import Json

#: Distributions whose versions change numbers.
_DISTRIBUTIONS: Final = (
    "gradscope-jax", "jax", "jaxlib", "numpy", "ml_dtypes", "flax", "equinox", "dm-haiku", "keras",
)  # fmt: skip


def machine_provenance() -> dict[str, Json]:
    """Returns versions, backend, device and the settings that change numbers."""
    device = jax.devices()[0]
    config: Any = jax.config  # its flags are not typed
    return {
        "python": platform.python_version(),
        "versions": versions(_DISTRIBUTIONS),
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "x64": bool(config.jax_enable_x64),
        "matmul_precision": config.jax_default_matmul_precision or "default",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def model_provenance(source: Path | None, file_sha256: str | None) -> dict[str, Json]:
    """Returns the model file's name, hash, git commit and whether it was clean; empty for a model without a file."""
    if source is None:
        return {}
    facts: dict[str, Json] = {"model_file": source.name, "model_sha256": file_sha256}
    commit = _git(source.parent, "rev-parse", "HEAD")
    if commit:
        facts["git_commit"] = commit
        facts["git_clean"] = _git(source.parent, "status", "--porcelain", "--", source.name) == ""
    return facts


def _git(folder: Path, *command: str) -> str | None:
    """Returns the output of a git command; None where there is no git or no repository."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program with fixed words and a file name
            ["git", "-C", str(folder), *command],  # noqa: S607 - git is wherever the user has it
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
