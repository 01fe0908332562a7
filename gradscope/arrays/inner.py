"""Inner products that stay on the calling thread."""

from __future__ import annotations

from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array

#: OpenBLAS splits a dot product of more than 10,000 elements among threads, which quarrel with the threads that work on
#: other tensors; rows of this size stay where they are.
_ROW_ELEMENTS: Final = 8192


def inner(first: Array, second: Array) -> float:
    """The inner product of two one-dimensional arrays of one size and dtype, by rows, the rows summed in float64."""
    rows = first.size // _ROW_ELEMENTS
    whole = rows * _ROW_ELEMENTS
    by_row = np.matmul(first[:whole].reshape(rows, 1, _ROW_ELEMENTS), second[:whole].reshape(rows, _ROW_ELEMENTS, 1))
    return float(by_row.sum(dtype=np.float64) + np.dot(first[whole:], second[whole:]))
