"""The statistics of one tensor, by the names of `columns.COLUMNS`, and how they are measured.

A column that does not
apply (an integer's mean, the extremes of nothing) or was not computed is None here and absent in JSON; None never
stands for zero.

Moments, extremes, norms and quantiles are over the finite elements, and the counts of the others stand beside them.
Of a complex tensor everything but the counts is about magnitudes.

The law: `stats(a) + stats(b)` is `stats(a laid before b)`: counts exactly, moments to rounding. Exact quantiles become
those of the histogram, and the hash is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from gradscope.arrays.digest import content_hash
from gradscope.arrays.dtypes import dtype_name, is_complex
from gradscope.arrays.histograms import UNDERFLOW_LIMITS, MagnitudeHistogram
from gradscope.arrays.quantiles import exact_quantiles as quantiles_of
from gradscope.arrays.quantiles import rank_of
from gradscope.arrays.reductions import Reduction
from gradscope.arrays.single_pass import reduce_array
from gradscope.dump.manifest.json_text import as_float, from_float
from gradscope.dump.manifest.manifest import Tier
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.stats.columns import base_of, columns_of, number
from gradscope.stats.reduction_columns import field, reduction_of, shape_of

#: The quantiles that have a column, in percent.
PERCENTS: Final = (1, 50, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStats:
    """The statistics of one tensor.

    Attributes:
        shape: As the model computed it; `(size,)` after a merge.
        dtype: The logical dtype's name.
        reduction: What was counted and summed.
        quantiles: Exact quantiles at `PERCENTS`; None where those of the histogram serve.
        hash: The 128-bit hash of the bytes in hexadecimal; None in the core tier and after a merge.
        dead: Of an activation: the share of its units that are dead; see `stats.units`. None after a merge.
        saturated: Of an activation: the share of its elements at a limit; see `stats.units`. None after a merge.
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

    def to_json(self) -> dict[str, Json]:
        """The columns that apply, by name, in the order of `columns.COLUMNS`."""
        found = ((spec.name, getattr(self, spec.base)) for spec in columns_of("tensor"))
        columns = (each for name, value in found for each in _of_types(name, value))
        return {name: _json(value) for name, value in columns if value is not None and value is not False}

    @classmethod
    def from_json(cls, columns: Mapping[str, Json]) -> TensorStats:
        """The statistics that `to_json` gave these columns for.

        Raises:
            DumpError: They are not such columns; what is wrong is named.
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
        """Which tier this is; integers have the same columns in both and count as full."""
        return "core" if self.nan is not None and self.reduction.magnitudes is None else "full"

    @property
    def complex(self) -> bool:
        """Whether the numbers are about the magnitudes of complex elements."""
        return is_complex(self.dtype)

    @property
    def exact_quantiles(self) -> bool:
        """Whether the quantiles come from the sorted elements."""
        return self.quantiles is not None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.size - (self.nan or 0) - (self.inf or 0)

    @property
    def mean(self) -> float | None:
        """Arithmetic mean."""
        return self.reduction.moments and self.reduction.moments.mean

    @property
    def std(self) -> float | None:
        """Population standard deviation (ddof 0)."""
        return self.reduction.moments and self.reduction.moments.std

    @property
    def rms(self) -> float | None:
        """Root mean square."""
        return self.reduction.moments and self.reduction.moments.rms

    @property
    def l2(self) -> float | None:
        """Euclidean norm."""
        return self.reduction.moments and self.reduction.moments.l2

    @property
    def l1(self) -> float | None:
        """Sum of magnitudes."""
        magnitudes = self.reduction.magnitudes
        return None if magnitudes is None or self.reduction.moments is None else magnitudes.total

    @property
    def min(self) -> float | None:
        """The smallest element; an exact int for an integer tensor."""
        return self.reduction.extremes and self.reduction.extremes.low

    @property
    def max(self) -> float | None:
        """The largest element; an exact int for an integer tensor."""
        return self.reduction.extremes and self.reduction.extremes.high

    @property
    def amax(self) -> float | None:
        """The largest magnitude."""
        return self.reduction.nonfinite and self.reduction.extremes and self.reduction.extremes.amax

    @property
    def amin_nz(self) -> float | None:
        """The smallest magnitude that is not zero."""
        magnitudes = self.reduction.magnitudes
        return None if magnitudes is None or math.isinf(magnitudes.smallest) else magnitudes.smallest

    @property
    def zeros(self) -> int | None:
        """Number of zeros, of either sign."""
        return self.reduction.zeros

    @property
    def nan(self) -> int | None:
        """Number of NaNs."""
        return self.reduction.nonfinite and self.reduction.nonfinite.nan

    @property
    def inf(self) -> int | None:
        """Number of infinities of either sign."""
        return self.reduction.nonfinite and self.reduction.nonfinite.inf

    @property
    def posinf(self) -> int | None:
        """Number of positive infinities."""
        nonfinite = self.reduction.nonfinite
        return None if nonfinite is None or nonfinite.neginf is None else nonfinite.inf - nonfinite.neginf

    @property
    def neginf(self) -> int | None:
        """Number of negative infinities."""
        return self.reduction.nonfinite and self.reduction.nonfinite.neginf

    @property
    def subnormal(self) -> int | None:
        """Number of elements that are subnormal in the tensor's own dtype (of a complex one, in its components')."""
        return self.reduction.magnitudes and self.reduction.magnitudes.subnormal

    @property
    def dynrange(self) -> float | None:
        """Bits between the smallest and the largest non-zero magnitude."""
        if not self.amax or self.amin_nz is None:
            return None
        return math.log2(self.amax) - math.log2(self.amin_nz)

    @property
    def p1(self) -> float | None:
        """The magnitude that 1 % of the elements are at or below."""
        return self._quantile(0)

    @property
    def p50(self) -> float | None:
        """The median magnitude."""
        return self._quantile(1)

    @property
    def p99(self) -> float | None:
        """The magnitude that 99 % of the elements are at or below."""
        return self._quantile(2)

    @property
    def histogram(self) -> MagnitudeHistogram | None:
        """The non-zero finite magnitudes, counted by bin."""
        return self.reduction.magnitudes and self.reduction.magnitudes.histogram

    @property
    def underflow(self) -> dict[str, float]:
        """For each type of an `underflow@` column, the share of non-zero finite elements that round to zero."""
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
        # No element lies in the part of its bin that is beyond an extreme.
        return min(max(magnitudes.histogram.at_rank(rank - zeros), magnitudes.smallest), amax)


def _of_types(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The columns of a line of the table: one, or for `NAME@T`, whose property maps types, one for each type."""
    if name == base_of(name):
        yield name, value
    else:
        yield from ((f"{base_of(name)}@{each}", share) for each, share in value.items())


def _json(value: Any) -> Json:
    if isinstance(value, MagnitudeHistogram):
        return {"first": value.first, "counts": list(value.counts)}
    if isinstance(value, tuple):
        return list(cast("tuple[int, ...]", value))
    return value if isinstance(value, str | bool) else from_float(value)


def tensor_stats(
    array: np.ndarray[Any, Any], *, tier: Tier = "full", exact_quantiles: bool = False, hashed: bool = True
) -> TensorStats:
    """The statistics of an array, in one pass over blocks of it (and one more for the hash).

    Args:
        array: Any shape and strides; any NumPy or ml_dtypes dtype. One that is not a number has a size and a hash only.
        tier: `full`, or `core` for what a compiled step can carry.
        exact_quantiles: Take quantiles from a sorted copy and not, to 1/32, from the histogram.
        hashed: Whether the full tier has a hash. It is a third of the time; without it, another thread can call
            `arrays.digest.content_hash`, which leaves the interpreter free, and put it into the column `hash`.

    Returns:
        The statistics.
    """
    reduction = reduce_array(array, magnitudes=tier == "full")
    return TensorStats(
        shape=array.shape,
        dtype=dtype_name(array.dtype),
        reduction=reduction,
        quantiles=quantiles_of(array, PERCENTS) if exact_quantiles and reduction.magnitudes is not None else None,
        hash=content_hash(array) if hashed and tier == "full" else None,
    )
