"""Freed memory, given back to the system between runs that share a bound."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Have the C library return what is free: glibc keeps blocks below 32 MiB, of which a run leaves a gigabyte.

    Where the library has no such function it is one that returns memory by itself.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
