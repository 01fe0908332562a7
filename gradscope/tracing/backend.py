"""The backend: whether JAX can be imported and finds a device, asked before anything is traced.

This module imports without JAX: it is the one that says why JAX cannot be imported.
"""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from typing import Any, Final, NoReturn

from gradscope.errors import MachineError, UsageError

#: How processes are told where to meet: the word, or an address, a number of processes and which of them this one is.
_AUTO: Final = "auto"
_ADDRESS: Final = re.compile(r"([^,]+:\d+),(\d+),(\d+)")


def backend_ready() -> None:
    """Import JAX and start its backend.

    Raises:
        MachineError: JAX is missing, does not fit jaxlib or NumPy, or the wanted platform has no device here.
    """
    jax = _jax()
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # a bare AssertionError where CUDA is asked for and not installed
        _no_device(error)


def join_processes(how: str) -> None:
    """Make this process one of several, before the backend starts.

    Args:
        how: `auto`, where the cluster says (Slurm, MPI, a TPU pod, ...); or `HOST:PORT,COUNT,INDEX`.

    Raises:
        UsageError: It is neither.
        MachineError: The processes do not find each other.
    """
    address = _ADDRESS.fullmatch(how)
    if address is None and how != _AUTO:
        raise UsageError(f"--distributed {how!r} is neither 'auto' nor HOST:PORT,COUNT,INDEX")
    jax = _jax()
    try:
        if address is None:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(address[1], int(address[2]), int(address[3]))
    except (RuntimeError, ValueError) as error:
        raise MachineError(
            f"the processes do not find each other: {error}",
            hint="without a cluster that says, give every process --distributed HOST:PORT,COUNT,INDEX",
        ) from error


def _jax() -> Any:
    try:
        import jax  # noqa: PLC0415 - see the module's docstring
    except (ImportError, RuntimeError, AttributeError) as error:  # what mismatched versions raise
        raise MachineError(
            f"JAX cannot be imported ({_versions()}): {error}",
            hint="reinstall the pair: pip install --upgrade jax jaxlib",
        ) from error
    return jax


def _no_device(error: Exception) -> NoReturn:
    wanted = os.environ.get("JAX_PLATFORMS", "")
    reason = str(error).partition(" (set JAX_PLATFORMS")[0]
    installed = ", ".join(["cpu", *(plugin.name for plugin in metadata.entry_points(group="jax_plugins"))])
    raise MachineError(
        f"JAX has no device for JAX_PLATFORMS={wanted!r}; installed: {installed}" + (f"; {reason}" if reason else ""),
        hint="unset JAX_PLATFORMS to use what is there, or install a platform, such as: pip install 'jax[cuda13]'",
    ) from error


def _versions() -> str:
    packages = ", ".join(f"{name} {_version(name)}" for name in ("jax", "jaxlib", "numpy"))
    return f"Python {platform.python_version()}, {packages}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"
