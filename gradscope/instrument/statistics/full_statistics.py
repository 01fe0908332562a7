"""Statistics of the full tier of a tensor inside a compiled step are one vector, behind those of the core tier.

They are the mean magnitude, three numbers, and a histogram of the magnitudes, from which quantiles and shares follow.
As `core_statistics`, the vector is computed by NumPy where the CPU is the device, and by kernels elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.dtypes import smallest_normal
from gradscope.arrays.histograms import BINS_PER_OCTAVE, EXPONENT_BIAS, UNDERFLOW_LIMITS, MagnitudeHistogram
from gradscope.arrays.magnitudes import Magnitudes
from gradscope.arrays.passes.single_pass import reduce_array
from gradscope.instrument.host_calls import made_on_host
from gradscope.instrument.statistics.core_statistics import CORE_NUMBERS, WIDTH, as_bytes, core_statistics
from gradscope.instrument.statistics.histogram_counts import BASE, as_float32, digits_of, tally
from gradscope.instrument.taps import full_tensor
from gradscope.stats.core_tier import CoreNumbers
from gradscope.stats.tensor_stats import PERCENTS
from gradscope.tracing.jaxpr.sharding import in_whole, varying, varying_axes

#: Counts that the full tier has beside its histogram, and the bits of the smallest magnitude that is not zero.
_FULL_COUNTS: Final = ("neginf", "subnormal", "smallest")
#: The bins of float32 in a `MagnitudeHistogram`, from that of the smallest subnormal on.
_FIRST_BIN: Final = (EXPONENT_BIAS - 149) * BINS_PER_OCTAVE - 1
_MAGNITUDE_BINS: Final = (EXPONENT_BIAS + 128) * BINS_PER_OCTAVE - _FIRST_BIN
#: Where the mean magnitude is in a vector, the counts and the histogram, and its length.
_MEAN_AT: Final = WIDTH
_COUNTS_AT: Final = _MEAN_AT + 1
_BINS_AT: Final = _COUNTS_AT + 2 * len(_FULL_COUNTS)
_FULL_WIDTH: Final = _BINS_AT + 2 * _MAGNITUDE_BINS
#: The mantissa bits of float32 that a bin does not have, the bits of its smallest normal number and of infinity.
_SHIFT: Final = 23 - 4
_NORMAL: Final = 0x00800000
_INFINITY: Final = 0x7F800000
_SMALLEST: Final = float(np.finfo(np.float32).smallest_subnormal)
#: By what large magnitudes are multiplied so that 2^32 of them do not overflow in their sum.
_SUMMABLE: Final = 2.0**-32


def full_statistics(value: Any) -> Any:
    """Returns the vector of `core_statistics`, then what the full tier has beside it; an observer.

    Args:
        value: An array of any shape; of a complex one the magnitudes are measured, of a typed PRNG key its data.
            Magnitudes of float64 beyond the range of float32 count as the smallest or the largest of that.
    """
    constant = as_bytes(jax.lax.stop_gradient(full_tensor(value)))
    more = in_whole(partial(jax.lax.platform_dependent, cpu=_magnitudes_on_host, default=_magnitudes_on_device))
    return jnp.concatenate([core_statistics(value), more(constant)])


def has_full_tier(vector: Any) -> bool:
    """Returns whether a vector, or one of several with leading axes, is of `full_statistics`."""
    return np.shape(vector)[-1] == _FULL_WIDTH


def with_full_tier(numbers: CoreNumbers, vector: np.ndarray) -> CoreNumbers:
    """Returns the core numbers of a vector of `full_statistics` with those of the full tier."""
    digits = vector[_COUNTS_AT:].reshape(-1, 2).astype(np.int64)
    neginf, subnormal, smallest, *counts = (digits[:, 0] * BASE + digits[:, 1]).tolist()
    occupied = np.flatnonzero(counts)
    histogram = MagnitudeHistogram()
    if occupied.size:
        first, last = int(occupied[0]), int(occupied[-1])
        histogram = MagnitudeHistogram(_FIRST_BIN + first, tuple(counts[first : last + 1]))
    magnitudes = Magnitudes(
        total=float(vector[_MEAN_AT]) * numbers.finite,
        smallest=float(np.uint32(smallest).view(np.float32)) if smallest else math.inf,
        subnormal=subnormal,
        histogram=histogram,
    )
    return replace(numbers, neginf=neginf, magnitudes=magnitudes)


def _magnitudes_on_host(value: Any) -> Any:
    shape = jax.ShapeDtypeStruct((_FULL_WIDTH - WIDTH,), jnp.float32)
    return varying(made_on_host(_magnitude_numbers, shape, value), varying_axes([value]))


def _magnitude_numbers(operand: np.ndarray) -> np.ndarray:
    found = reduce_array(operand, magnitudes=True)
    mean, smallest, subnormal, neginf = 0.0, 0, 0, 0
    bins = np.zeros(_MAGNITUDE_BINS, np.int64)
    if found.magnitudes is not None and found.nonfinite is not None:
        magnitudes, neginf = found.magnitudes, found.nonfinite.neginf or 0
        subnormal = magnitudes.subnormal
        mean = magnitudes.total / max(0 if found.moments is None else found.moments.count, 1)
        if math.isfinite(magnitudes.smallest):
            smallest = int(np.float32(max(magnitudes.smallest, _SMALLEST)).view(np.uint32))
        at = magnitudes.histogram.first - _FIRST_BIN + np.arange(len(magnitudes.histogram.counts))
        np.add.at(bins, np.clip(at, 0, _MAGNITUDE_BINS - 1), magnitudes.histogram.counts)
    digits = np.stack(np.divmod(np.array([neginf, subnormal, smallest, *bins]), BASE), axis=1)
    with np.errstate(over="ignore"):
        return np.array([mean, *digits.reshape(-1)], np.float32)


def _magnitudes_on_device(value: Any) -> Any:
    wide = as_float32(value.reshape(-1))
    bits = (jax.lax.bitcast_convert_type(wide, jnp.uint32) & 0x7FFFFFFF).astype(jnp.int32)
    is_finite = bits < _INFINITY
    # Subnormal numbers are zeros where the platform takes them for that, as XLA does on the CPU.
    is_counted = is_finite & (wide != 0)
    limit = np.float32(max(smallest_normal(np.dtype(value.dtype)), _SMALLEST)).view(np.uint32).astype(np.int32)
    subnormal = (bits > 0) & (bits < limit)  # by their bits, whatever the platform takes them for
    smallest = jnp.where(is_counted, bits, _INFINITY).min(initial=_INFINITY)
    smallest = jnp.where(smallest == _INFINITY, 0, smallest)
    magnitudes = jnp.where(is_finite, jnp.abs(wide), 0)
    # The sum of large magnitudes may overflow.
    scale = jnp.where(magnitudes.max(initial=0) > 1, _SUMMABLE, 1)
    mean = (magnitudes * scale).sum() / jnp.maximum(is_finite.sum(), 1).astype(jnp.float32) / scale
    counts = [(wide == -jnp.inf).sum(), subnormal.sum(), smallest]
    every = jnp.concatenate([jnp.stack(counts), tally(_bins(bits, is_counted), _MAGNITUDE_BINS)])
    return jnp.concatenate([mean[None], digits_of(every)])


def _bins(bits: Any, is_counted: Any) -> Any:
    """Returns the number of each magnitude's bin from the first one on, and a number beyond for what has none."""
    # A subnormal number is a whole number of the smallest one, which float32 has exactly.
    whole = jax.lax.bitcast_convert_type(bits.astype(jnp.float32), jnp.int32)
    ordinal = jnp.where(bits < _NORMAL, whole - 1, bits - 1) >> _SHIFT
    octaves = jnp.where(bits < _NORMAL, EXPONENT_BIAS - 127 - 149, EXPONENT_BIAS - 127)
    return jnp.where(is_counted, ordinal + octaves * BINS_PER_OCTAVE - _FIRST_BIN, _MAGNITUDE_BINS)


def _share(vector: Any, limit: float) -> Any:
    counts = _counts(vector)[..., len(_FULL_COUNTS) :]
    end = MagnitudeHistogram.first_above(limit) - _FIRST_BIN
    known = jnp.maximum(counts.sum(-1), 1).astype(jnp.float32)
    return counts[..., :end].sum(-1).astype(jnp.float32) / known


def _counts(vector: Any) -> Any:
    digits = vector[..., _COUNTS_AT:].reshape(*np.shape(vector)[:-1], -1, 2).astype(jnp.int32)
    return digits[..., 0] * BASE + digits[..., 1]


def _quantile(percent: int, vector: Any) -> Any:
    counts = _counts(vector)[..., len(_FULL_COUNTS) :]
    zeros = CORE_NUMBERS["zeros"](vector).astype(jnp.int32)
    # As `rank_of`, in parts, since a product with the percentage may overflow.
    known, whole = zeros + counts.sum(-1), 100
    rank = jnp.maximum(percent * (known // whole) - (-percent * (known % whole) // whole), 1) - zeros
    position = (jnp.cumsum(counts, -1) < rank[..., None]).sum(-1) + _FIRST_BIN
    exponent, part = position // BINS_PER_OCTAVE - EXPONENT_BIAS, position % BINS_PER_OCTAVE
    middle = jnp.ldexp(1 + (part.astype(jnp.float32) + 0.5) / BINS_PER_OCTAVE, exponent)
    middle = jnp.minimum(jnp.maximum(middle, FULL_NUMBERS["amin_nz"](vector)), CORE_NUMBERS["amax"](vector))
    return jnp.where(rank > 0, middle, 0)


def _smallest(vector: Any) -> Any:
    return jax.lax.bitcast_convert_type(_counts(vector)[..., _FULL_COUNTS.index("smallest")], jnp.float32)


def _count(name: str, vector: Any) -> Any:
    return _counts(vector)[..., _FULL_COUNTS.index(name)].astype(jnp.float32)


#: The statistics of the full tier that a vector has on the device beside `CORE_NUMBERS`, by column name.
FULL_NUMBERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "l1": lambda vector: vector[..., _MEAN_AT] * CORE_NUMBERS["finite"](vector),
    "amin_nz": _smallest,
    "posinf": lambda vector: CORE_NUMBERS["inf"](vector) - _count("neginf", vector),
    "neginf": partial(_count, "neginf"),
    "subnormal": partial(_count, "subnormal"),
    "dynrange": lambda vector: jnp.log2(CORE_NUMBERS["amax"](vector)) - jnp.log2(_smallest(vector)),
    **{f"p{percent}": partial(_quantile, percent) for percent in PERCENTS},
    **{f"underflow@{name}": partial(_share, limit=limit) for name, limit in UNDERFLOW_LIMITS.items()},
}
