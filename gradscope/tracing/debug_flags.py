"""JAX has flags for debugging that stop a program: at a NaN, at an infinity, at a transfer that nobody asked for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import jax


@contextmanager
def debug_flags_off() -> Generator[None]:
    """Lets programs make NaNs, and move arrays between host and device, whatever the user's flags say.

    Where NaNs are looked for, the run has to come to its end: a flag that stops it knows less of where they began.
    """
    with jax.debug_nans(False), jax.debug_infs(False), jax.transfer_guard("allow"):
        yield
