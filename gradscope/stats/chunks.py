"""Computes the statistics of a tensor that is available chunk by chunk, as when it is read from a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradscope.arrays.digest import Digest
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.arrays.passes.single_pass import reduce_array
from gradscope.dump.manifest.manifest import Tier
from gradscope.stats.tensor_stats import TensorStats


def stats_of_chunks(
    chunks: Iterable[np.ndarray[Any, Any]], *, shape: tuple[int, ...], dtype: str, tier: Tier = "full"
) -> TensorStats:
    """Returns the statistics of a tensor whose elements come in chunks.

    Args:
        chunks: The elements in C order, in contiguous arrays of the tensor's dtype.
        shape: The tensor's shape.
        dtype: The logical dtype's name.
        tier: As for `tensor_stats`.

    Returns:
        The same statistics, hash included, as `tensor_stats` returns for the full array.
    """
    digest = Digest()
    reduction = reduce_array(np.empty(0, as_numpy_dtype(dtype)), magnitudes=tier == "full")
    for chunk in chunks:
        reduction += reduce_array(chunk, magnitudes=tier == "full")
        digest.add(chunk)
    return TensorStats(
        shape=shape, dtype=dtype, reduction=reduction, hash=digest.hexadecimal() if tier == "full" else None
    )
