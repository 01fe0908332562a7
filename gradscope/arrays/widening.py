"""Converts a block of any floating-point dtype to float32 or float64 exactly, and a complex block to magnitudes.

Every float of at most 16 bits is exactly representable in float32. So one set of reductions is enough, on the two
dtypes in which NumPy is fast.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.scratch import ScratchSlot, scratch

_BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
_WIDE: Final = (np.dtype(np.float32), np.dtype(np.float64))


def wide_values(array: Array) -> Array:
    """Returns the elements of an array of any shape, as `real_values` has them, in a float64 array of its own.

    Args:
        array: The array.
    """
    return real_values(array.reshape(-1)).reshape(array.shape).astype(np.float64)


def real_values(block: Array) -> Array:
    """Returns the elements of `block` as float32 or float64, exactly; of complex elements, their magnitudes in float64.

    Args:
        block: One-dimensional, contiguous: floating-point (ml_dtypes included), complex, or of whole numbers or truth
            values, of which those beyond 2**53 are rounded.

    Returns:
        An array of the same size; `block` itself where it already is float32 or float64. The magnitude of a finite
        complex128 overflows to infinity above 1.8e308.
    """
    if block.dtype.kind == "c":
        with np.errstate(over="ignore"):
            return np.abs(block.astype(np.complex128))
    if block.dtype in _WIDE:
        return block
    if block.dtype.kind in "biu":  # there is no table of the codes of those of 32 bits
        return block.astype(np.float64)
    codes = codes_of(block)
    if block.dtype == _BFLOAT16:
        words = scratch(ScratchSlot.NARROW, block.size, np.uint32)
        np.copyto(words, codes)
        return np.left_shift(words, 16, out=words).view(np.float32)  # it is the upper half of a float32
    # A table of all bit patterns: NumPy's and ml_dtypes' casts took up to 8 times (float8) as long.
    # No index needs wrapping, but only in this mode does `take` write directly into `out`.
    return np.take(
        float32_of_code(block.dtype), codes, out=scratch(ScratchSlot.NARROW, block.size, np.float32), mode="wrap"
    )


def as_reals(array: Array) -> Array:
    """Returns an array in float64; of a complex one both parts, along one more axis at the end.

    Args:
        array: Any shape and strides, of numbers (ml_dtypes included).
    """
    if array.dtype.kind != "c":
        return np.asarray(array, np.float64)
    return np.ascontiguousarray(array, np.complex128).reshape(*array.shape, 1).view(np.float64)


@cache
def float32_of_code(dtype: np.dtype[Any]) -> Array:
    """Returns the float32 of every code, a bit pattern as an integer, of a floating-point dtype of at most 16 bits."""
    codes = np.arange(256**dtype.itemsize, dtype=_code_type(dtype))
    return codes.view(dtype).astype(np.float32)


def codes_of(block: Array) -> Array:
    """Returns the codes of a block, which is as for `float32_of_code`."""
    return block.view(_code_type(block.dtype))


def _code_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")
