"""JAX has flags for debugging that stop a program: at a NaN, at an infinity, at a transfer that nobody asked for.

Another one runs it operation by operation, so that nothing can be compiled ahead of a run. Where NaNs are looked for,
the run has to come to its end: a flag that stops it knows less of where they began.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax


@contextmanager
def debug_flags_off() -> Generator[None]:
    """Turns these flags off for a time and in this thread, in a process that is the user's."""
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False), jax.transfer_guard("allow"):
        yield


def turn_debug_flags_off() -> None:
    """Turns these flags off in a process of a command, where other threads read arrays, too."""
    config: Any = jax.config  # its flags are not typed
    for name in ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs"):
        config.update(name, False)
    config.update("jax_transfer_guard", "allow")
