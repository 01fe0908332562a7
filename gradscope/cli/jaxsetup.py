"""JAX's settings for one command: precision, and where compiled programs are kept between runs.

JAX is imported here, on purpose after the command line has been read: what needs no JAX never pays for it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from gradscope.cli.options import FloatType, Precision


def set_up_jax(*, x64: bool, dtype: FloatType | None, matmul_precision: Precision | None, cache: bool) -> None:
    """Import JAX and configure it.

    Args:
        x64: Compute in float64 where the model does not say otherwise.
        dtype: What the model will be asked to compute in.
        matmul_precision: JAX's `jax_default_matmul_precision`; None leaves it.
        cache: Keep compiled programs in the user's cache folder.

    Raises:
        UsageError: The dtype needs what is not enabled.
        MachineError: JAX or its backend cannot be used here.
    """
    from gradscope.errors import UsageError
    from gradscope.tracing.backend import backend_ready

    backend_ready()
    import jax

    logging.getLogger("jax").addHandler(_Remarks())
    config: Any = jax.config  # its flags are not typed
    # Whole tracebacks: where an error was raised decides whose it is, and which frames are shown is decided elsewhere.
    config.update("jax_traceback_filtering", "off")
    config.update("jax_enable_x64", x64 or config.jax_enable_x64)
    if dtype is FloatType.FLOAT64 and not config.jax_enable_x64:
        raise UsageError("--dtype float64 without --x64 would compute in float32", hint="add --x64")
    if matmul_precision is not None:
        config.update("jax_default_matmul_precision", matmul_precision.value)
    if cache and config.jax_compilation_cache_dir is None:
        config.update("jax_compilation_cache_dir", str(cache_folder()))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


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
