"""Tolerances: how much `rel_l2` is rounding, by what the coarser dtype of a pair can hold.

These are starting points to be calibrated; every row says the smallest tolerance that would have passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gradscope.compare.precision import coarser, comparable, kind_of
from gradscope.dump.record import Json
from gradscope.naming import is_gradient

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
