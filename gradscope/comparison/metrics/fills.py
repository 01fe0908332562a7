"""`fills_of` finds the number that a mask writes in the place of values, as -1e9 among the logits of an attention.

One such number outweighs all values that were computed: with it, no norm tells whether these differ. And of two
programs that compute the same, one may write -1e9 and the other minus infinity. A *fill* is the only large value of a
tensor, at several positions: each other element is at least 1,000 times smaller, and they are not all zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.dtypes import is_floating
from gradscope.arrays.widening import real_values
from gradscope.comparison.layout.operands import Operand
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json

#: The least magnitude of a fill: a share of a softmax may be 1, and the others next to nothing.
_LEAST: Final = 1e3

#: How many times smaller than a fill all other elements are, at least.
_APART: Final = 1e3

#: At how many positions a fill is, at least.
_FEWEST: Final = 2

#: The part of the largest magnitude that a quantile of the magnitudes has which is a fill: quantiles are not exact.
_EQUAL: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fills:
    """Fills stores what masks write in both tensors of a pair.

    Attributes:
        ref: The fill of the reference.
        cand: That of the candidate, of the same sign.
    """

    ref: float
    cand: float


def fills_of(ref: Operand, cand: Operand) -> Fills | None:
    """Returns the fills of two tensors; None where one has none, or where both are infinite, as no norm has these.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor.

    Returns:
        Two equal fills, or two that are negative, as those before a softmax: other numbers may have been computed.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    if not (_may_have_fill(ref) and _may_have_fill(cand)):
        return None
    one = fill_of(ref.chunks())
    other = None if one is None else fill_of(cand.chunks())
    if one is None or other is None or (math.isinf(one) and math.isinf(other)):
        return None
    return Fills(ref=one, cand=other) if one == other or max(one, other) < 0 else None


def _may_have_fill(operand: Operand) -> bool:
    """Returns whether a tensor's statistics allow that it has a fill; True where they are not known."""
    stats: Mapping[str, Json] = operand.entry.stats
    if not is_floating(operand.entry.dtype):
        return False
    if not stats or stats.get("posinf") or stats.get("neginf"):
        return True
    if "p99" not in stats:  # those of the core tier tell nothing of it
        return False
    largest = as_float(stats["amax"])
    small = min(as_float(stats["p1"]), as_float(stats["p50"]))
    return as_float(stats["p99"]) >= _EQUAL * largest and small * _APART <= largest


def fill_of(chunks: Iterable[Array]) -> float | None:
    """Returns the fill among some elements; None where they have none.

    Args:
        chunks: The elements in C order, in contiguous arrays of a floating-point dtype.
    """
    # The value of the largest magnitude, the number of its positions, and the largest magnitude of the others.
    fill, count, second = 0.0, 0, 0.0
    for chunk in chunks:
        for block in blocks(chunk):
            values = real_values(block)
            values = values[~np.isnan(values)]
            magnitudes = np.abs(values)
            largest = float(values[np.argmax(magnitudes)]) if values.size else 0.0
            if abs(largest) > abs(fill):
                fill, count, second = largest, 0, max(second, abs(fill))
            others = magnitudes[values != fill]
            count += values.size - others.size
            second = max(second, float(others.max())) if others.size else second
    is_alone = abs(fill) >= _LEAST and 0 < second * _APART <= abs(fill) and not math.isinf(second)
    return fill if is_alone and count >= _FEWEST else None
