"""Provenance: what a run depended on, as far as it may explain why another run differs."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from gradscope.dump.record import Json

#: Distributions whose versions change numbers.
_DISTRIBUTIONS: Final = (
    "gradscope-jax", "jax", "jaxlib", "numpy", "ml_dtypes", "flax", "equinox", "dm-haiku", "keras",
)  # fmt: skip


def machine_provenance() -> dict[str, Json]:
    """Versions, backend, device and the settings that change numbers."""
    device = jax.devices()[0]
    config: Any = jax.config  # its flags are not typed
    return {
        "python": platform.python_version(),
        "versions": {name: version for name in _DISTRIBUTIONS if (version := _version(name)) is not None},
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "x64": bool(config.jax_enable_x64),
        "matmul_precision": config.jax_default_matmul_precision or "default",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def model_provenance(source: Path | None, file_sha256: str | None) -> dict[str, Json]:
    """The model file's name, hash, git commit and whether it was clean; empty for a model without a file."""
    if source is None:
        return {}
    facts: dict[str, Json] = {"model_file": source.name, "model_sha256": file_sha256}
    commit = _git(source.parent, "rev-parse", "HEAD")
    if commit:
        facts["git_commit"] = commit
        facts["git_clean"] = _git(source.parent, "status", "--porcelain", "--", source.name) == ""
    return facts


def command_line() -> list[Json]:
    """The command as typed, the program without its folder and absolute paths without theirs."""
    program = Path(sys.argv[0])
    # `python -m package` runs a file inside of it.
    name = program.parent.name if program.name == "__main__.py" else program.name
    return [name, *(_without_folder(argument) for argument in sys.argv[1:])]


def content_hash(arrays: Sequence[Any]) -> str:
    """SHA-256 over the shapes, dtypes and bytes of some arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        host = np.ascontiguousarray(array)
        digest.update(f"{host.dtype}{host.shape}".encode())
        digest.update(host.view(np.uint8).data if host.ndim else host.tobytes())
    return digest.hexdigest()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _without_folder(argument: str) -> str:
    path = Path(argument)
    return path.name if path.is_absolute() else argument


def _git(folder: Path, *command: str) -> str | None:
    """The output of a git command; None where there is no git or no repository."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program with fixed words and a file name
            ["git", "-C", str(folder), *command],  # noqa: S607 - git is wherever the user has it
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
