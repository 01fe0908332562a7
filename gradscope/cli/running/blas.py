"""`blas` limits the threads that NumPy's matrix library starts when NumPy is imported."""

from __future__ import annotations

import os


def keep_single_threaded() -> None:
    """Makes OpenBLAS start no threads, unless the user's environment sets their number; call it before NumPy's import.

    It is for commands that only read dumps. A command that runs a model leaves the threads to the model's code.
    """
    # The threads wait by spinning, which took a quarter of the CPU seconds of `show` (2026-11).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
