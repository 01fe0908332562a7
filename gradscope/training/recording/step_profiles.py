"""Writes profiles of steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.errors import MachineError, UsageError
from gradscope.naming import printable


def _without_python() -> dict[str, Any]:
    """Returns the arguments for a profile without Python's calls: of a step that is compiled, they are a million."""
    options: Any = getattr(jax.profiler, "ProfileOptions", None)
    if options is None:  # a JAX that profiles them in any case
        return {}
    without = options()
    without.python_tracer_level = 0
    return {"profiler_options": without}


@contextmanager
def profiled(path: Path | None, before: Any) -> Generator[Callable[[Any], None]]:
    """Profiles a step with `jax.profiler`, if it has a path to write to.

    Args:
        path: The folder of the profile, in the layout that TensorBoard reads; that of an earlier run is replaced. None
            for no profile.
        before: The arrays that the step receives; the profile starts when they are computed.

    Yields:
        The function that takes the arrays of the step: with a profile it waits for them.

    Raises:
        UsageError: Another profile is being taken.
        MachineError: It cannot be written.
    """
    if path is None:
        yield lambda _arrays: None
        return
    jax.block_until_ready(before)
    with machine_errors("replace", path):
        if path.exists():
            shutil.rmtree(path)
    try:
        jax.profiler.start_trace(path, **_without_python())
    except RuntimeError as error:
        raise UsageError(f"a step cannot be profiled: {error}", hint="leave out --trace-every") from error
    try:
        yield jax.block_until_ready
    finally:
        try:
            jax.profiler.stop_trace()
        except (OSError, RuntimeError) as error:
            raise MachineError(f"cannot write the profile {printable(str(path))}: {error}") from error
