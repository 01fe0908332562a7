"""Widening: any floating-point or complex block as float32 or float64 values that are exactly the same.

Every float of at most 16 bits is a float32, and every float32 a float64, without rounding. So one set of reductions, on
the two formats that NumPy is fast in, serves them all. A complex element stands for its magnitude, in float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.scratch import Slot, scratch

_WIDE: Final = (np.dtype(np.float32), np.dtype(np.float64))


def real_values(block: Array) -> Array:
    """The elements of `block` as float32 or float64, exactly; the magnitudes of complex ones.

    Args:
        block: One-dimensional, contiguous, floating-point (ml_dtypes included) or complex.

    Returns:
        An array of the same size; `block` itself where it is float32 or float64 already. The magnitude of a finite
        complex128 above 1.8e308 is infinite.
    """
    if block.dtype.kind == "c":
        with np.errstate(over="ignore"):
            return np.abs(block.astype(np.complex128))
    if block.dtype in _WIDE:
        return block
    # A table of all codes: NumPy's and ml_dtypes' own casts took 1.5 times (bfloat16) to 8 times (float8) as long.
    codes = block.view(_code_type(block.dtype))
    # Every code is in the table; only in this mode does `take` write straight into its target.
    return np.take(_float32_of_code(block.dtype), codes, out=scratch(Slot.NARROW, block.size, np.float32), mode="wrap")


@cache
def _float32_of_code(dtype: np.dtype[Any]) -> Array:
    codes = np.arange(256**dtype.itemsize, dtype=_code_type(dtype))
    return codes.view(dtype).astype(np.float32)


def _code_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")
