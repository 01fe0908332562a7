"""Repairs state what to change where a known cause made a NaN or an infinity.
Each is stated once, and a test applies it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np


class Diagnosis(NamedTuple):
    """A `Diagnosis` states what happened in an operation, and the repair; "" where there is no general one."""

    why: str
    repair: str = ""


ADD_EPSILON: Final = "keep the operand away from there: add a small epsilon, or clip it"
CLIP_NEGATIVE: Final = "clip the operand from below at a small positive number, or look for what makes it negative"
CLIP_INSIDE: Final = "clip the operand to a little less than the range where it is defined, such as -1 + eps to 1 - eps"
SHIFT: Final = (
    "subtract the largest operand first, as jax.nn.softmax and jax.nn.logsumexp do, use jax.nn.softplus for "
    "log(1 + exp(x)), or clip the operand"
)
LOG_SOFTMAX: Final = "use jax.nn.log_softmax(x) in place of the log of softmax(x)"
LOG_SIGMOID: Final = "use jax.nn.log_sigmoid(x) in place of the log of sigmoid(x)"
CLIP_OVERFLOW: Final = "clip the operand"
UNDER_ROOT: Final = "add a small epsilon under the square root that it is divided by"
LARGER_EPSILON: Final = "state a larger epsilon there"
WHERE_TWICE: Final = (
    "use where twice: give the operation a harmless operand, f(where(ok, x, 1)), where its result is thrown away"
)
X_LOG_X: Final = "use where twice: p * log(where(p > 0, p, 1)) is 0 where p is 0, and so is its gradient"
NORM: Final = "take the norm of a vector that cannot be zero: sqrt(sum(x**2) + eps), or where(x2 > 0, x2, 1) inside it"
FINITE_MASK: Final = "mask with a large finite number, -1e9 say, in place of -inf, or keep one entry of every row"
MASK_FIRST: Final = "mask with where, before the infinity is made, and not by multiplying"
VALID_INDEX: Final = (
    "keep the indices inside: look at the data and the table's size; of labels that stand for none, as -100 or 255, "
    "put 0 in their place, and mask their part of the loss"
)
BASE_POSITIVE: Final = "keep the base positive: clip it, or take the power of its magnitude"
JITTER: Final = "add a small multiple of the identity to the matrix"
LEAVE_POLE: Final = "keep the operand away from the pole: clip it to where the function is finite"
REGULAR: Final = "add a small multiple of the identity to the matrix that is inverted"
SCALE_LOSS: Final = "scale the loss down"
SCALE_OPERANDS: Final = "scale the operands down"
WIDER: Final = "compute this in float32"


def overflow(dtype: np.dtype, *, backward: bool) -> Diagnosis:
    """Returns the diagnosis of a result beyond the largest number of a dtype, as the predicate of a clause."""
    scale = SCALE_LOSS if backward else SCALE_OPERANDS
    repair = f"{scale}, or {WIDER}" if _is_narrow(dtype) else scale
    return Diagnosis(f"overflow of {dtype} (largest {largest(dtype):.6g})", repair)


def in_narrow_dtype(found: Diagnosis, dtype: np.dtype) -> Diagnosis:
    """Returns the diagnosis of an overflow with its dtype, where that holds less than float32; else as it is."""
    if not _is_narrow(dtype):
        return found
    return Diagnosis(f"{found.why} {dtype} (largest {largest(dtype):.6g})", f"{found.repair}, or {WIDER}")


def _is_narrow(dtype: np.dtype) -> bool:
    return bool(jnp.finfo(dtype).bits < jnp.finfo(jnp.float32).bits)


def is_large(*operands: Iterable[Any]) -> bool:
    """Returns whether an element of some operands is large enough for the result of an operation to overflow."""
    arrays = map(np.asarray, chain(*operands))
    wide = (np.abs(each if np.iscomplexobj(each) else each.astype(np.float64)) for each in arrays)
    return any(bool((each > 1).any()) for each in wide)


def largest(dtype: np.dtype) -> float:
    """Returns the largest number of a dtype; of a complex one, that of its parts."""
    return float(jnp.finfo(dtype).max)


def element(index: tuple[int, ...]) -> str:
    """Returns the words for the place of an element; "" for a scalar."""
    return f" (element {list(index)})" if index else ""


def numbers(operands: tuple[float, ...]) -> str:
    """Returns operands as words."""
    return " and ".join(f"{operand:.6g}" for operand in operands)
