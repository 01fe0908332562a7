"""Precision: what a dtype can tell apart, and so what may be expected of two tensors of it.

A pair is judged by its *coarser* dtype, the one with fewer bits of significand: that one has forgotten more.

The yardstick of one pair: what its metrics are measured against, decided once and not per block.

Tolerances: how much `rel_l2` is rounding, by what the coarser dtype of a pair can hold.

These are starting points to be calibrated; every row says the smallest tolerance that would have passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from gradscope.arrays.dtypes import as_numpy_dtype, is_complex, is_floating, stored_dtype
from gradscope.dump.record import Json
from gradscope.naming import is_gradient

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
    """`small` of docs/reference/metrics.md: elements below it take no part in `max_rel` and `sign_flip`.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What the elements of a pair are measured against.

    Attributes:
        kind: What sort of numbers they are, as `precision.kind_of` has it.
        dtype: The coarser dtype, for floating-point and complex pairs of their components; else the reference's.
        rtol: The relative part of numpy's rule.
        atol: Its absolute part.
    """

    kind: str
    dtype: str
    rtol: float
    atol: float

    @property
    def small(self) -> float:
        """The magnitude below which relations do not count."""
        return small_magnitude(self.dtype)

    @property
    def ulp_allowance(self) -> int:
        """The distance in units in the last place that is nothing special."""
        return ulp_allowance(self.dtype)


def yardstick_of(ref_dtype: str, cand_dtype: str, *, rtol: float, atol: float) -> Yardstick:
    """The yardstick of two tensors of one kind."""
    kind = kind_of(ref_dtype)
    dtype = coarser(ref_dtype, cand_dtype) if kind in ("float", "complex") else ref_dtype
    return Yardstick(kind=kind, dtype=dtype, rtol=rtol, atol=atol)


_BY_DTYPE: Final = {"float64": 1e-10, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}

#: What every floating-point type of a byte or less gets.
_NARROWEST: Final = 1e-1

#: A gradient has been through the network twice.
_GRADIENT_FACTOR: Final = 5

#: What JAX calls a product whose factors are rounded to fewer bits than float32 has.
_REDUCED: Final = ("bfloat16", "bf16", "tensorfloat32", "tf32", "f16", "fastest", "any_f8")

#: Several reduced products that together give the digits of one float32 product.
_RECOVERED: Final = ("_3x", "_x3", "_x6", "_x9")

#: JAX names that mean full precision on CPU and reduced precision on an accelerator.
_UP_TO_THE_BACKEND: Final = ("default", "high")


def default_tolerance(family: str, ref_dtype: str, cand_dtype: str, *, reduced: bool) -> float:
    """The tolerance on `rel_l2` of a pair for which nobody asked for another.

    Args:
        family: The pair's family.
        ref_dtype: The reference's logical dtype.
        cand_dtype: The candidate's.
        reduced: Whether either side was computed with reduced matmul precision; float32 then counts as bfloat16.

    Returns:
        The tolerance; 0 for what does not round: integers, booleans, keys, and dtypes of two kinds.
    """
    if not comparable(ref_dtype, cand_dtype) or kind_of(ref_dtype) not in ("float", "complex"):
        return 0.0
    dtype = coarser(ref_dtype, cand_dtype)
    effective = "bfloat16" if reduced and dtype == "float32" else dtype
    return _BY_DTYPE.get(effective, _NARROWEST) * (_GRADIENT_FACTOR if is_gradient(family) else 1)


def reduced_matmul(provenance: Mapping[str, Json]) -> bool:
    """Whether a run multiplied float32 matrices with fewer digits than float32 has, as far as its provenance tells."""
    precision = str(provenance.get("matmul_precision") or "").lower()
    if precision in _UP_TO_THE_BACKEND:
        return provenance.get("backend") != "cpu"
    return precision.startswith(_REDUCED) and not precision.endswith(_RECOVERED)
