"""`jax_setup` imports JAX, starts its backend, and sets its precision for one command.

JAX is imported only here, after the command line has been read, so that a command without JAX starts fast. The module
itself imports without JAX, because it reports why JAX cannot be imported.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn

from gradscope.cli.options.model_options import FloatType, ModelOptions
from gradscope.cli.running.starting_jax.joining import join_processes
from gradscope.cli.running.starting_jax.kept_programs import keep_programs, load_named_programs
from gradscope.errors import MachineError, UsageError
from gradscope.user_cache import is_unicode

#: What the loader of shared objects says where there is no memory for one.
_LACK_OF_MEMORY: Final = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")

#: What only the URL of a folder has.
_REMOTE: Final = "://"

#: The value of JAX_DUMP_IR_TO that stands for the folder of another variable, in which Bazel collects what tests write.
_UNDECLARED: Final = "sponge"
_UNDECLARED_FOLDER: Final = "TEST_UNDECLARED_OUTPUTS_DIR"


def backend_ready() -> None:
    """Imports JAX and starts its backend.

    Raises:
        MachineError: JAX is missing, does not fit jaxlib or NumPy, or the requested platform has no device here.
    """
    jax = imported_jax()
    try:
        jax.default_backend()
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # AssertionError: CUDA is requested and not installed
        _no_device(error)


def imported_jax() -> Any:
    """Returns the package `jax`.

    Raises:
        MachineError: It is missing, or does not fit jaxlib or NumPy.
    """
    try:
        import jax
    except (ImportError, RuntimeError, AttributeError) as error:  # what mismatched versions raise
        too_large = any(words in str(error) for words in _LACK_OF_MEMORY)
        raise MachineError(
            f"JAX cannot be imported ({_versions()}): {error}",
            hint="allow this process more memory (ulimit -v)" if too_large
            else "reinstall the pair: pip install --upgrade jax jaxlib",
        ) from error  # fmt: skip
    except ValueError as error:
        raise MachineError(f"JAX refuses its settings: {error}", hint="correct the variable, or unset it") from error
    return jax


def _no_device(error: Exception) -> NoReturn:
    requested = os.environ.get("JAX_PLATFORMS", "")
    reason = str(error).partition(" (set JAX_PLATFORMS")[0]
    installed = ", ".join(["cpu", *(plugin.name for plugin in metadata.entry_points(group="jax_plugins"))])
    raise MachineError(
        f"JAX has no device for JAX_PLATFORMS={requested!r}; installed: {installed}"
        + (f"; {reason}" if reason else ""),
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


#: The number of new objects between two garbage collections.
_COLLECT_EVERY: Final = 200_000


def set_up_jax(
    model: ModelOptions, programs_of: Sequence[object], *, cache: bool = True, distributed: str | None = None
) -> tuple[str, ...]:
    """Imports JAX and configures it.

    Args:
        model: The options that state the model's precision.
        programs_of: What the programs depend on beside these options: those of the last time are loaded early where all
            of that is as it was.
        cache: Whether compiled programs are kept in the user's cache folder.
        distributed: How to join other processes; None for a single process.

    Returns:
        Messages about what could not be done and does not affect the result.

    Raises:
        UsageError: The dtype needs float64, which is not enabled.
        MachineError: JAX or its backend cannot be used here.
    """
    _collect_rarely()
    imported_jax()
    if distributed is not None:
        join_processes(distributed)
    backend_ready()
    import jax

    from gradscope.tracing.debug_flags import turn_debug_flags_off

    gc.freeze()  # the collector never visits what is imported by now
    logging.getLogger("jax").addHandler(_LogMessages())
    config: Any = jax.config  # its flags are not typed
    # Full tracebacks: the file that raised an error decides whether the error is the model's or gradscope's.
    config.update("jax_traceback_filtering", "off")
    config.update("jax_enable_x64", model.x64 or config.jax_enable_x64)
    turn_debug_flags_off()
    if model.dtype is FloatType.FLOAT64 and not config.jax_enable_x64:
        raise UsageError("--dtype float64 without --x64 would compute in float32", hint="add --x64")
    _require_usable(config)
    if model.matmul_precision is not None:
        config.update("jax_default_matmul_precision", model.matmul_precision.value)
    if config.jax_compilation_cache_dir is not None:
        folder = Path(config.jax_compilation_cache_dir)
        if not is_unicode(folder):
            raise MachineError(
                f"JAX takes no folder for compiled programs whose name is no UTF-8: {str(folder)!r}",
                hint="correct JAX_COMPILATION_CACHE_DIR, or unset it",
            )
        load_named_programs(folder)
        return ()
    return () if not cache else keep_programs(config, (model, *programs_of))


def _require_usable(config: Any) -> None:
    """Refuses settings that JAX takes from the environment, and fails with while it traces or compiles.

    Raises:
        MachineError: One is of no use.
    """
    bits = 64 if config.jax_enable_x64 else 32
    offset, folder = (config.values.get(name) for name in ("jax_random_seed_offset", "jax_dump_ir_to"))
    if not -(1 << (bits - 1)) <= (offset or 0) < 1 << (bits - 1):
        raise MachineError(
            f"JAX takes no offset of seeds of more than {bits} bits: {offset}",
            hint="correct JAX_RANDOM_SEED_OFFSET, or unset it",
        )
    if folder == _UNDECLARED:
        folder = os.environ.get(_UNDECLARED_FOLDER)
        if not folder:
            raise MachineError(
                f"JAX writes its programs to {_UNDECLARED_FOLDER} where JAX_DUMP_IR_TO is {_UNDECLARED}: it is not set",
                hint="correct JAX_DUMP_IR_TO, or unset it",
            )
    if folder and _REMOTE not in folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise MachineError(
                f"JAX cannot write its programs to {folder}: {getattr(error, 'strerror', error)}",
                hint="correct JAX_DUMP_IR_TO, or unset it",
            ) from error


def _collect_rarely() -> None:
    """Makes the garbage collector run less often."""
    # Importing and tracing make millions of objects that live until the end. Collecting took a sixth of the time of
    # importing JAX, and a fifth of the time of tracing and lowering a ResNet-50.
    gc.set_threshold(_COLLECT_EVERY, 30, 10)


class _LogMessages(logging.Handler):
    """`_LogMessages` prints JAX's log as one-line messages."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record of the log."""
        from gradscope.cli.printing import say

        if record.exc_info is None:  # JAX raises as an error, too, what it logs with a traceback
            say(f"jax: {record.getMessage()}")
