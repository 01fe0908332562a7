"""NumPy's matrix library, and the threads that it starts when NumPy is imported."""

from __future__ import annotations

import os


def keep_single_threaded() -> None:
    """Have OpenBLAS start no threads, unless the user's environment says how many. To be called before NumPy's import.

    They wait by spinning, which took a quarter of the CPU seconds of `show` (2026-11), and what reads dumps never gives
    them work. Not for what runs a model, whose own code may.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
