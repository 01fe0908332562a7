"""Precision states which dtypes can be compared, how finely they resolve numbers, and the `Scale` of one pair.

A pair is compared at the precision of its *coarser* dtype, the one with fewer bits of significand: comparing float32
with bfloat16 at float32's precision would report the rounding to bfloat16 as a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from gradscope.arrays.dtypes import as_numpy_dtype, is_complex, is_floating, stored_dtype

#: The least magnitude at which a relative error is meaningful. Types that are absent use 2^-p for p significand bits;
#: wide types count half their digits only, because a correct program can lose the others where a sum cancels.
_SMALL: Final = {"float32": 2.0**-14, "float64": 2.0**-26}


@lru_cache(maxsize=256)
def dtype_class(name: str) -> str:
    """Returns the class of numbers that a logical dtype holds; only dtypes of one class can be compared.

    Returns:
        `float`, `complex`, `integer` or `boolean`; for other dtypes, such as those of random keys, the name itself.
    """
    if is_floating(name):
        return "float"
    if is_complex(name):
        return "complex"
    if name.startswith(("int", "uint")):
        return "integer"
    return "boolean" if name == "bool" else name


@lru_cache(maxsize=256)
def comparable(first: str, second: str) -> bool:
    """Returns whether elements of two logical dtypes can be subtracted without a change of class."""
    if dtype_class(first) != dtype_class(second):
        return False
    # uint64 and a signed integer have no integer type in common.
    return dtype_class(first) != "integer" or np.result_type(stored_dtype(first), stored_dtype(second)).kind in "iu"


def component_name(name: str) -> str:
    """Returns the dtype of one real component: `float32` for `complex64`; real dtypes are returned unchanged."""
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


@lru_cache(maxsize=256)
def coarser(first: str, second: str) -> str:
    """Returns the floating-point dtype with fewer bits of significand; complex dtypes count as their components."""
    return min(component_name(first), component_name(second), key=lambda name: (_significand_bits(name), name))


def small_magnitude(name: str) -> float:
    """Returns the magnitude below which elements take no part in `max_rel` and `sign_flip`.

    2^-14 for float32, 2^-26 for float64, and 2^-p for narrower types of p bits of significand: 2^-11 for float16,
    2^-8 for bfloat16, 2^-4 for float8_e4m3fn.
    """
    return _SMALL.get(name, 2.0 ** -_significand_bits(name))


def ulp_allowance(name: str) -> int:
    """Returns the distance in ulps above which `ulp_share` counts an element: 1 for up to 16 bits, else 32."""
    return 1 if as_numpy_dtype(name).itemsize <= 2 else 32


def machine_epsilon(name: str) -> float:
    """Returns the distance from 1 to the next number of a floating-point dtype."""
    return float(_limits(name).eps)


def saturating_cast(block: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Returns finite elements cast to a coarser dtype; elements beyond its range become its largest value."""
    target = as_numpy_dtype(name)
    if block.dtype == target:
        return block
    largest = float(_limits(name).max)
    return np.clip(block.astype(np.float64), -largest, largest).astype(target)


@cache
def _significand_bits(name: str) -> int:
    return int(_limits(name).nmant) + 1


def _limits(name: str) -> Any:
    # The stubs of ml_dtypes type only some fields of its `finfo`.
    return ml_dtypes.finfo(as_numpy_dtype(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Scale stores the precision at which the elements of one pair are compared.

    Attributes:
        kind: The class of the elements, see `dtype_class`.
        dtype: The coarser dtype (of the components, for complex pairs); for exact kinds the reference's dtype.
        rtol: The relative tolerance of `numpy.isclose`, for the metric `mismatch`.
        atol: The absolute tolerance of `numpy.isclose`.
    """

    kind: str
    dtype: str
    rtol: float
    atol: float

    @property
    def small(self) -> float:
        """The magnitude below which relative errors do not count, see `small_magnitude`."""
        return small_magnitude(self.dtype)

    @property
    def ulp_allowance(self) -> int:
        """The distance in ulps that `ulp_share` does not count, see the function `ulp_allowance`."""
        return ulp_allowance(self.dtype)


@lru_cache(maxsize=256)
def scale_of(ref_dtype: str, cand_dtype: str, *, rtol: float, atol: float) -> Scale:
    """Returns the scale of two tensors of one kind."""
    kind = dtype_class(ref_dtype)
    dtype = coarser(ref_dtype, cand_dtype) if kind in ("float", "complex") else ref_dtype
    return Scale(kind=kind, dtype=dtype, rtol=rtol, atol=atol)
