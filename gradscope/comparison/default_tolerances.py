"""Default tolerances state how large `rel_l2` may be before a pair of tensors counts as different.

The default of a pair follows from its coarser dtype and from whether it holds gradients:

    dtype                      values    gradients
    float64                    1e-10     5e-10
    float32                    1e-4      5e-4
    float16                    5e-3      2.5e-2
    bfloat16                   2e-2      1e-1
    a byte or less             1e-1      5e-1
    integers, booleans, keys   0         0

These numbers are starting points: every row of a comparison states the smallest tolerance that would have passed
(`needed`). They grow with depth where rounding adds up (`judging/rounding/accumulated_rounding.py`). A tensor of a
calibrated reference is judged by its noise floor instead (`judging/limits/noise.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gradscope.comparison.precision import coarser, comparable, dtype_class
from gradscope.dump.record import Json
from gradscope.naming import is_gradient

_BY_DTYPE: Final = {"float64": 1e-10, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}

#: The tolerance of every floating-point type of a byte or less.
_NARROWEST: Final = 1e-1

#: A gradient accumulates the rounding of the forward and of the backward pass.
_GRADIENT_FACTOR: Final = 5

#: How JAX's names for matmul precisions begin whose factors have fewer bits than float32.
_REDUCED: Final = ("bfloat16", "bf16", "tensorfloat32", "tf32", "f16", "fastest", "any_f8")

#: How the names end of those that add up several reduced products to the digits of one float32 product.
_RECOVERED: Final = ("_3x", "_x3", "_x6", "_x9")

#: JAX's names that mean full precision on CPU and reduced precision on an accelerator.
_BACKEND_DEPENDENT: Final = ("default", "high")


@lru_cache(maxsize=256)
def default_tolerance(family: str, ref_dtype: str, cand_dtype: str, *, reduced: bool) -> float:
    """Returns the tolerance on `rel_l2` of a pair for which no other tolerance was given.

    Args:
        family: The pair's family.
        ref_dtype: The reference's logical dtype.
        cand_dtype: The candidate's logical dtype.
        reduced: Whether either side was computed with reduced matmul precision; float32 then counts as bfloat16.

    Returns:
        The tolerance; 0 for integers, booleans and keys, which do not round, and for dtypes of two kinds.
    """
    if not comparable(ref_dtype, cand_dtype) or dtype_class(ref_dtype) not in ("float", "complex"):
        return 0.0
    dtype = coarser(ref_dtype, cand_dtype)
    effective = "bfloat16" if reduced and dtype == "float32" else dtype
    return _BY_DTYPE.get(effective, _NARROWEST) * (_GRADIENT_FACTOR if is_gradient(family) else 1)


def reduced_matmul(provenance: Mapping[str, Json]) -> bool:
    """Returns whether, by its provenance, a run multiplied float32 matrices with fewer digits than float32 has."""
    precision = str(provenance.get("matmul_precision") or "").lower()
    if precision in _BACKEND_DEPENDENT:
        return provenance.get("backend") != "cpu"
    return precision.startswith(_REDUCED) and not precision.endswith(_RECOVERED)
