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

Where float32 matrices are multiplied with fewer digits, as a GPU does by default, float32 has the tolerance of the
dtype whose digits they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Final

from gradscope.comparison.precision import coarser, comparable, dtype_class
from gradscope.dump.record import Json
from gradscope.naming import INPUT, PARAM, STATE, is_gradient

_BY_DTYPE: Final = {"float64": 1e-10, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}

#: The tolerance of every floating-point type of a byte or less.
_NARROWEST: Final = 1e-1

#: A gradient accumulates the rounding of the forward and of the backward pass.
_GRADIENT_FACTOR: Final = 5

#: The families that are read, not computed.
READ_FAMILIES: Final = (PARAM, STATE, INPUT)

#: The dtype of full matmul precision.
FULL: Final = "float32"

#: TensorFloat-32, in which a GPU multiplies float32 matrices by default: it has float16's bits of significand.
TENSORFLOAT32: Final = "float16"

#: The dtypes whose digits the factors of products have, by how JAX's names for matmul precisions begin.
_BY_PRECISION: Final = {
    "bfloat16": "bfloat16", "bf16": "bfloat16", "any_f8": "bfloat16",
    "tensorfloat32": TENSORFLOAT32, "tf32": TENSORFLOAT32, "f16": "float16",
}  # fmt: skip

#: How the names end of those that add up several reduced products to the digits of one float32 product.
_RECOVERED: Final = ("_3x", "_x3", "_x6", "_x9")

#: What JAX's names that depend on the backend mean there; "" is any other backend, such as a TPU. Its "high" is a sum
#: of three products.
_BY_BACKEND: Final[Mapping[str, Mapping[str, str]]] = {
    "default": {"cpu": FULL, "gpu": TENSORFLOAT32, "": "bfloat16"},
    "fastest": {"cpu": FULL, "gpu": TENSORFLOAT32, "": "bfloat16"},
    "high": {"cpu": FULL, "gpu": TENSORFLOAT32, "": FULL},
}


@lru_cache(maxsize=256)
def default_tolerance(family: str, ref_dtype: str, cand_dtype: str, *, products: str = FULL) -> float:
    """Returns the tolerance on `rel_l2` of a pair for which no other tolerance was given.

    Args:
        family: The pair's family.
        ref_dtype: The reference's logical dtype.
        cand_dtype: The candidate's logical dtype.
        products: The coarser of the dtypes in which both sides multiplied float32 matrices, see `matmul_dtype`;
            what is computed in float32 then counts as that.

    Returns:
        The tolerance; 0 for integers, booleans and keys, which do not round, and for dtypes of two kinds.
    """
    if not comparable(ref_dtype, cand_dtype) or dtype_class(ref_dtype) not in ("float", "complex"):
        return 0.0
    dtype = in_products(coarser(ref_dtype, cand_dtype), FULL if family in READ_FAMILIES else products)
    return _BY_DTYPE.get(dtype, _NARROWEST) * (_GRADIENT_FACTOR if is_gradient(family) else 1)


def in_products(dtype: str, products: str) -> str:
    """Returns the dtype whose digits a tensor has where float32 matrices are multiplied in a coarser one."""
    return products if dtype == FULL else dtype


def matmul_dtype(provenance: Mapping[str, Json]) -> str:
    """Returns the dtype whose digits the factors of a product of float32 matrices had, by the provenance of a run.

    Returns:
        "float32"; "float16", whose eleven bits of significand TensorFloat-32 has, for a GPU's default; or "bfloat16",
        for that of a TPU. Older GPUs, which have no TensorFloat-32, count as those that have.

    References:
        `jax.lax.Precision` states what each name means on each backend.
    """
    precision = str(provenance.get("matmul_precision") or "").lower()
    if precision in _BY_BACKEND:
        of = _BY_BACKEND[precision]
        return of.get(str(provenance.get("backend")), of[""])
    if precision.endswith(_RECOVERED):
        return FULL
    return next((dtype for start, dtype in _BY_PRECISION.items() if precision.startswith(start)), FULL)


def coarsest_matmul_dtype(*provenances: Mapping[str, Json]) -> str:
    """Returns the coarsest of the dtypes in which some runs multiplied float32 matrices."""
    return reduce(coarser, map(matmul_dtype, provenances))
