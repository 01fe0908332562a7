"""JAX's settings for one command: precision, and where compiled programs are kept between runs.

JAX is imported here, on purpose after the command line has been read: what needs no JAX never pays for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def set_up_jax(*, x64: bool, matmul_precision: str | None, cache: bool) -> None:
    """Import JAX and configure it.

    Args:
        x64: Compute in float64 where the model does not say otherwise.
        matmul_precision: JAX's `jax_default_matmul_precision`; None leaves it.
        cache: Keep compiled programs in the user's cache folder.

    Raises:
        UsageError: No such precision.
        MachineError: JAX or its backend cannot be used here.
    """
    from gradscope.tracing.backend import backend_ready

    backend_ready()
    import jax

    config: Any = jax.config  # its flags are not typed
    config.update("jax_enable_x64", x64 or config.jax_enable_x64)
    if matmul_precision is not None:
        config.update("jax_default_matmul_precision", matmul_precision)
    if cache and config.jax_compilation_cache_dir is None:
        config.update("jax_compilation_cache_dir", str(cache_folder()))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def cache_folder() -> Path:
    """Where compiled programs are kept: `$XDG_CACHE_HOME/gradscope`, by default `~/.cache/gradscope`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradscope" / "compiled"
