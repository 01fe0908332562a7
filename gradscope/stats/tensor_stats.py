"""Computes the statistics of one tensor; `TensorStats` holds them, one attribute for each of `columns.COLUMNS`.

A column that does not apply (the mean of integers, the extremes of no elements) or was not computed is None here and
absent in JSON. None never means zero.

Moments, extremes, norms and quantiles are over the finite elements; non-finite ones are counted in columns of their
own. Of a complex tensor, all columns but the counts are about magnitudes.

Statistics can be added: `stats(a) + stats(b)` equals `stats(concatenate([a, b]))`, counts exactly, moments up to
rounding. Exact quantiles become those of the histogram, and the hash is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np

from gradscope.arrays.blocks import require_measurable
from gradscope.arrays.digest import begun_hash
from gradscope.arrays.dtypes import dtype_name, is_complex
from gradscope.arrays.histograms import SMALLEST_NORMAL, UNDERFLOW_LIMITS, MagnitudeHistogram
from gradscope.arrays.passes.single_pass import reduce_array
from gradscope.arrays.quantiles import exact_quantiles as quantiles_of
from gradscope.arrays.quantiles import rank_of
from gradscope.arrays.reductions import Reduction
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Tier
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.naming.summary import Summary
from gradscope.stats.columns import column, columns_of, number
from gradscope.stats.reduction_columns import field, json_of, reduction_of, shape_of
from gradscope.typed_arguments import typed

#: The quantiles that have a column, in percent.
PERCENTS: Final = (1, 50, 99)
#: The columns that one line shows.
_FIRST: Final = ("mean", "std", "rms", "min", "max", "nan", "inf")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TensorStats:
    """`TensorStats` are the statistics of one tensor.

    `size`, `finite`, `zeros`, `nan`, `inf`, `posinf`, `neginf` and `subnormal` are counts of elements; `dead`,
    `saturated` and `underflow` are shares, from 0 to 1; `dynrange` is in bits, powers of two; all others are in the
    tensor's own unit. None where a number does not apply or was not computed.

    Attributes:
        shape: As the model computed it; `(size,)` after a merge.
        dtype: The logical dtype's name.
        reduction: The counts, sums and extremes of the elements.
        quantiles: Exact quantiles at `PERCENTS`; None where quantiles are read from the histogram.
        hash: The 128-bit hash of the bytes in hexadecimal; None in the core tier and after a merge.
        dead: Of an activation: the share of its units that are dead; see `stats.units`. None after a merge.
        saturated: Of an activation: the share of its elements at a limit; see `stats.units`. None after a merge.

    Example:
        >>> import numpy as np
        >>> import gradscope as gs
        >>> whole = gs.tensor_stats(np.array([1.0, 2.0])) + gs.tensor_stats(np.array([-3.0, np.inf]))
        >>> whole.size, whole.inf, whole.mean, whole.amax
        (4, 1, 0.0, 3.0)
    """

    shape: tuple[int, ...]
    dtype: str
    reduction: Reduction
    quantiles: tuple[float, ...] | None = None
    hash: str | None = None
    dead: float | None = None
    saturated: float | None = None

    def __add__(self, other: TensorStats) -> TensorStats:
        if self.dtype != other.dtype:
            raise UsageError(f"cannot merge statistics of {self.dtype} with statistics of {other.dtype}")
        return TensorStats(
            shape=(self.size + other.size,), dtype=self.dtype, reduction=self.reduction + other.reduction
        )

    def __repr__(self) -> str:
        return self.summary().one_line("TensorStats")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def summary(self) -> Summary:
        """Returns every column that is one value, and in the line the first of them."""
        shown = {name: each for name, each in self.to_json().items() if isinstance(each, str | int | float)}
        first = ", ".join(f"{name} {each:.3g}" for name in _FIRST if isinstance(each := shown.get(name), int | float))
        line = f"{self.dtype}{list(self.shape)}" + (f": {first}" if first else "")
        return Summary(line=line, headings=("column", "value"), rows=tuple(shown.items()))

    def to_json(self) -> dict[str, Json]:
        """Returns the columns that apply, by name, in the order of `columns.COLUMNS`."""
        columns: dict[str, Json] = {}
        for spec in columns_of("tensor"):
            value = getattr(self, spec.base)
            if spec.is_by_type:
                columns.update((f"{spec.base}@{each}", json_of(share)) for each, share in value.items())
            elif value is not None and value is not False:
                columns[spec.name] = json_of(value)
        return columns

    @classmethod
    def from_json(cls, columns: Mapping[str, Json]) -> TensorStats:
        """Returns the statistics from the columns that `to_json` returned.

        Raises:
            DumpError: A column is missing, has the wrong type, or contradicts another; the message names it.
        """
        shape = shape_of(columns)
        exact = columns.get("exact_quantiles") is True
        return cls(
            shape=shape,
            dtype=str(field(columns, "dtype")),
            reduction=reduction_of(columns, math.prod(shape)),
            quantiles=tuple(as_float(field(columns, f"p{percent}")) for percent in PERCENTS) if exact else None,
            hash=str(columns["hash"]) if "hash" in columns else None,
            dead=number(columns, "dead"),
            saturated=number(columns, "saturated"),
        )

    @property
    def tier(self) -> Tier:
        """The tier; integers have the same columns in both tiers and count as full."""
        return "core" if self.nan is not None and self.reduction.magnitudes is None else "full"

    @column
    def complex(self) -> bool:
        return is_complex(self.dtype)

    @column
    def exact_quantiles(self) -> bool:
        return self.quantiles is not None

    @column
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.size - (self.nan or 0) - (self.inf or 0)

    @column
    def mean(self) -> float | None:
        return self.reduction.moments and self.reduction.moments.mean

    @column
    def std(self) -> float | None:
        return self.reduction.moments and self.reduction.moments.std

    @column
    def rms(self) -> float | None:
        return self.reduction.moments and self.reduction.moments.rms

    @column
    def l2(self) -> float | None:
        return self.reduction.moments and self.reduction.moments.l2

    @column
    def l1(self) -> float | None:
        magnitudes = self.reduction.magnitudes
        return None if magnitudes is None or self.reduction.moments is None else magnitudes.total

    @column
    def min(self) -> float | None:
        return self.reduction.extremes and self.reduction.extremes.low

    @column
    def max(self) -> float | None:
        return self.reduction.extremes and self.reduction.extremes.high

    @column
    def amax(self) -> float | None:
        return self.reduction.nonfinite and self.reduction.extremes and self.reduction.extremes.amax

    @column
    def amin_nz(self) -> float | None:
        magnitudes = self.reduction.magnitudes
        return None if magnitudes is None or math.isinf(magnitudes.smallest) else magnitudes.smallest

    @column
    def zeros(self) -> int | None:
        return self.reduction.zeros

    @column
    def nan(self) -> int | None:
        return self.reduction.nonfinite and self.reduction.nonfinite.nan

    @column
    def inf(self) -> int | None:
        return self.reduction.nonfinite and self.reduction.nonfinite.inf

    @column
    def posinf(self) -> int | None:
        nonfinite = self.reduction.nonfinite
        return None if nonfinite is None or nonfinite.neginf is None else nonfinite.inf - nonfinite.neginf

    @column
    def neginf(self) -> int | None:
        return self.reduction.nonfinite and self.reduction.nonfinite.neginf

    @column
    def subnormal(self) -> int | None:
        return self.reduction.magnitudes and self.reduction.magnitudes.subnormal

    @column
    def dynrange(self) -> float | None:
        if not self.amax or self.amin_nz is None:
            return None
        return math.log2(self.amax) - math.log2(self.amin_nz)

    @column
    def p1(self) -> float | None:
        return self._quantile(0)

    @column
    def p50(self) -> float | None:
        return self._quantile(1)

    @column
    def p99(self) -> float | None:
        return self._quantile(2)

    @column
    def histogram(self) -> MagnitudeHistogram | None:
        return self.reduction.magnitudes and self.reduction.magnitudes.histogram

    @column
    def underflow(self) -> dict[str, float]:
        if self.histogram is None or not self.histogram.total:
            return {}
        total = self.histogram.total
        return {name: self.histogram.at_most_power(limit) / total for name, limit in UNDERFLOW_LIMITS.items()}

    def _quantile(self, position: int) -> float | None:
        if self.quantiles is not None:
            return self.quantiles[position]
        magnitudes, zeros, amax = self.reduction.magnitudes, self.zeros, self.amax
        if magnitudes is None or zeros is None or amax is None:
            return None
        rank = rank_of(PERCENTS[position], zeros + magnitudes.histogram.total)
        if rank <= zeros:
            return 0.0
        # The middle of a bin may be beyond an extreme, where no element can be.
        return min(max(magnitudes.histogram.at_rank(rank - zeros), magnitudes.smallest), amax)


@typed("array", "tier")
def tensor_stats(
    array: np.ndarray[Any, Any], *, tier: Tier = "full", exact_quantiles: bool = False, hashed: bool = True
) -> TensorStats:
    """Returns the statistics of an array, computed in one pass over its blocks, beside one for the hash.

    Args:
        array: Any shape, strides and NumPy or ml_dtypes dtype. Without a number dtype, there are only size and hash.
        tier: `full`, or `core` for the columns that a compiled step computes without being asked for more.
        exact_quantiles: Whether to compute exact quantiles from a copy, as is done where there are subnormals of
            float64. Those of the histogram are within 1/32.
        hashed: Whether to compute the hash of the full tier, which takes as long as the others. Without it, another
            thread can call `arrays.digest.content_hash`, which releases the interpreter lock, and fill in the column.

    Returns:
        The statistics.

    Raises:
        UsageError: It is no array of NumPy, is masked or has objects of Python, or there is no such tier.

    Example:
        >>> import numpy as np
        >>> import gradscope as gs
        >>> stats = gs.tensor_stats(np.array([[3.0, 0.0], [-4.0, np.nan]]))
        >>> stats.l2, stats.zeros, stats.nan, stats.underflow["float16"]
        (5.0, 1, 1, 0.0)
    """
    require_measurable(array, tier, get_args(Tier))
    hashing = begun_hash(array) if hashed and tier == "full" else None
    reduction = reduce_array(array, magnitudes=tier == "full")
    magnitudes = reduction.magnitudes
    # A histogram's bins are too wide for the subnormals of float64.
    exact = magnitudes is not None and (exact_quantiles or magnitudes.smallest < SMALLEST_NORMAL)
    return TensorStats(
        shape=array.shape,
        dtype=dtype_name(array.dtype),
        reduction=reduction,
        quantiles=quantiles_of(array, PERCENTS) if exact else None,
        hash=None if hashing is None else hashing(),
    )
