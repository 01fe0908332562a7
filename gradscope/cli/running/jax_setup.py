"""JAX's settings for one command: precision, and where compiled programs are kept between runs.

JAX is imported here, on purpose after the command line has been read: what needs no JAX never pays for it.

The backend: whether JAX can be imported and finds a device, asked before anything is traced.

This module imports without JAX: it is the one that says why JAX cannot be imported.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import re
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn

from gradscope.cli.options.model_options import FloatType, ModelOptions
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
        import jax
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


#: New objects between two collections.
_COLLECT_EVERY: Final = 200_000


def set_up_jax(model: ModelOptions, *, cache: bool, distributed: str | None = None) -> tuple[str, ...]:
    """Import JAX and configure it.

    Args:
        model: What the model will be asked to compute in.
        cache: Keep compiled programs in the user's cache folder.
        distributed: How to join other processes; None for a process of its own.

    Returns:
        Sentences about what could not be done, and does not matter.

    Raises:
        UsageError: The dtype needs what is not enabled.
        MachineError: JAX or its backend cannot be used here.
    """
    _collect_rarely()
    from gradscope.errors import UsageError

    if distributed is not None:
        join_processes(distributed)
    backend_ready()
    import jax

    gc.freeze()  # what is imported by now is never looked at again
    logging.getLogger("jax").addHandler(_Remarks())
    config: Any = jax.config  # its flags are not typed
    # Whole tracebacks: where an error was raised decides whose it is, and which frames are shown is decided elsewhere.
    config.update("jax_traceback_filtering", "off")
    config.update("jax_enable_x64", model.x64 or config.jax_enable_x64)
    if model.dtype is FloatType.FLOAT64 and not config.jax_enable_x64:
        raise UsageError("--dtype float64 without --x64 would compute in float32", hint="add --x64")
    if model.matmul_precision is not None:
        config.update("jax_default_matmul_precision", model.matmul_precision.value)
    return _keep_programs(config) if cache and config.jax_compilation_cache_dir is None else ()


def _collect_rarely() -> None:
    """Have the garbage collector look less often: what importing and tracing make by the million lives until the end.

    It took a sixth of the time of importing JAX, and a fifth of that of tracing and lowering a ResNet-50.
    """
    gc.set_threshold(_COLLECT_EVERY, 30, 10)


def _keep_programs(config: Any) -> tuple[str, ...]:
    """Have compiled programs kept, if there is a place for them; what goes wrong with it later is no news."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        return (f"compiled programs are not kept: {error}",)
    if not os.access(folder, os.W_OK):
        return (f"compiled programs are not kept: {folder} is read-only",)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return ()


class _Remarks(logging.Handler):
    """JAX's log as remarks of one line. What it logs with a traceback it raises as well, and is told as an error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        from gradscope.cli.printing import say

        if record.exc_info is None:
            say(f"jax: {record.getMessage()}")


def cache_folder() -> Path:
    """Where compiled programs are kept: `$XDG_CACHE_HOME/gradscope`, by default `~/.cache/gradscope`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradscope" / "compiled"
