"""`decided_by_rounding` tells a gradient that differs where rounding decides the sign of a rectifier's input.

A rectifier passes the gradient of an element or passes none. Where its input is zero but for rounding, two programs
that agree in all values may differ there, by as much as the gradient is large.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import counted

#: The reason that such a difference has.
RECTIFIED: Final = "where a rectifier's input may be zero but for rounding"

#: The largest share of the elements that rounding decides: more of them have another reason.
_MOST: Final = 0.01


#: The largest size of a value, relative to the root mean square, that is zero but for rounding.
_ZERO: Final = 1e-3


def decided_by_rounding(ref: Array, cand: Array, values: Array, tolerance: float) -> str:
    """Returns that two gradients differ only where their value is about zero and one of them is; "" where they do not.

    Args:
        ref: The reference's gradient.
        cand: The candidate's, of the same shape.
        values: The value that both are gradients of, in either program, which agree on it.
        tolerance: The relative error up to which the elements count as the same, in the l2 norm.
    """
    one, other, value = (np.asarray(each, np.float64) for each in (ref, cand, values))
    decided = (one == 0) != (other == 0)
    if np.any(np.abs(value[decided]) > _ZERO * np.sqrt(np.mean(value**2))):
        return ""
    count = int(decided.sum())
    if not 0 < count <= _MOST * decided.size:
        return ""
    if np.linalg.norm((one - other)[~decided]) > tolerance * np.linalg.norm(one):
        return ""
    elements = counted(count, "element")
    return f"differs only in {elements} of {decided.size:,}, {RECTIFIED}"
