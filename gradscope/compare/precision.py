"""Precision: what a dtype can tell apart, and so what may be expected of two tensors of it.

A pair is judged by its *coarser* dtype, the one with fewer bits of significand: that one has forgotten more.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from gradscope.arrays.dtypes import as_numpy_dtype, is_complex, is_floating, stored_dtype

#: The least magnitude at which a relative error says something, where it is not 2^-p of a significand of p bits: wide
#: types are judged by half their digits, because a sum that cancels loses the others in the best of programs.
_SMALL: Final = {"float32": 2.0**-14, "float64": 2.0**-26}


def kind_of(name: str) -> str:
    """What sort of numbers a logical dtype holds; only dtypes of one kind can be compared.

    Returns:
        `float`, `complex`, `integer` or `boolean`; for anything else (a kind of key) the name itself.
    """
    if is_floating(name):
        return "float"
    if is_complex(name):
        return "complex"
    if name.startswith(("int", "uint")):
        return "integer"
    return "boolean" if name == "bool" else name


def comparable(first: str, second: str) -> bool:
    """Whether there is a type in which elements of two logical dtypes can be subtracted as what they are."""
    if kind_of(first) != kind_of(second):
        return False
    # uint64 and a signed integer have no integer type in common.
    return kind_of(first) != "integer" or np.result_type(stored_dtype(first), stored_dtype(second)).kind in "iu"


def component_name(name: str) -> str:
    """The dtype of the real numbers that a floating-point or complex dtype is made of."""
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


def coarser(first: str, second: str) -> str:
    """Of two floating-point dtypes the one with fewer bits of significand; for complex ones, of their components."""
    return min(component_name(first), component_name(second), key=lambda name: (_significand_bits(name), name))


def small_magnitude(name: str) -> float:
    """`small(dtype)` of numbers.md: elements below it take no part in `max_rel` and `sign_flip`.

    2^-14 for float32, 2^-26 for float64, and 2^-p for narrower types of p bits of significand: 2^-11 for float16,
    2^-8 for bfloat16, 2^-4 for float8_e4m3fn.
    """
    return _SMALL.get(name, 2.0 ** -_significand_bits(name))


def ulp_allowance(name: str) -> int:
    """The distance in units in the last place above which `ulp_share` counts an element: 1 up to 16 bits, else 32."""
    return 1 if as_numpy_dtype(name).itemsize <= 2 else 32


def machine_epsilon(name: str) -> float:
    """The distance from 1 to the next number of a floating-point dtype."""
    return float(_limits(name).eps)


def saturating_cast(block: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Finite elements rounded to a coarser dtype, and to its largest value where they are beyond it."""
    target = as_numpy_dtype(name)
    if block.dtype == target:
        return block
    largest = float(_limits(name).max)
    return np.clip(block.astype(np.float64), -largest, largest).astype(target)


@cache
def _significand_bits(name: str) -> int:
    return int(_limits(name).nmant) + 1


def _limits(name: str) -> Any:
    # ml_dtypes types the fields of its `finfo` by halves.
    return ml_dtypes.finfo(as_numpy_dtype(name))
