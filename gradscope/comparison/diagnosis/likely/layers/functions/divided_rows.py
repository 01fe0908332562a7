"""`divided_rows` tells that each row of one value is that of another divided by a whole number, as means are of sums.

Nodes of a graph have different numbers of neighbours, and segments different numbers of elements.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array

#: The relative error up to which rows are multiples, and numbers are whole.
_FITS: Final = 1e-4

#: The most that a row is divided by, the fewest elements of one, and the fewest rows.
_MOST: Final = 1 << 12
_FEWEST_ELEMENTS: Final = 3
_FEWEST_ROWS: Final = 3


def divided_rows(own: Array, other: Array) -> str:
    """Returns by what whole numbers the rows along the last axis are divided, as a clause; "" where by none.

    Args:
        own: The value of the reference `[..., features]`.
        other: That of the candidate.
    """
    if own.shape != other.shape or own.ndim < 2 or own.shape[-1] < _FEWEST_ELEMENTS:
        return ""
    counts, inverse = _counts(own, other), _counts(other, own)
    if counts:
        return f"is the reference's, of which rows are divided by {counts}, as means are sums that are divided"
    return f"is the reference's, of which rows are multiplied by {inverse}, as sums are of means" if inverse else ""


def _counts(whole: Array, mean: Array) -> str:
    """Returns the different whole numbers that divide rows, in words; "" where they are not all whole, or all one."""
    whole, mean = (each.reshape(-1, each.shape[-1]) for each in (whole, mean))
    rows = np.flatnonzero(np.linalg.norm(whole, axis=1) > 0)
    if len(rows) < _FEWEST_ROWS or np.any(np.delete(mean, rows, 0)):
        return ""
    whole, mean = whole[rows], mean[rows]
    with np.errstate(all="ignore"):
        ratios = (whole * mean).sum(1) / np.square(mean).sum(1)
    if not np.isfinite(ratios).all():
        return ""
    counts = np.rint(ratios)
    is_whole = np.abs(ratios - counts) <= _FITS * counts
    near = np.linalg.norm(mean * counts[:, None] - whole, axis=1) <= _FITS * np.linalg.norm(whole, axis=1)
    if not (is_whole & near).all() or counts.min() < 1 or counts.max() > _MOST or counts.min() == counts.max():
        return ""
    return f"{counts.min():.0f} to {counts.max():.0f}"
