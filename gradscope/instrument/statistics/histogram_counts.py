"""Core statistics and the value histogram of a tensor inside a compiled step are one vector.

As `core_statistics`, it is computed by NumPy where the CPU is the device, and has each count as two digits of float32.
Other devices add ones at the bins of the elements, which is a kernel of its own: it is for chosen steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.history.value_histograms import BINS, BINS_PER_SIGN, SHIFT, ValueHistogram, counted
from gradscope.instrument.host_calls import made_on_host
from gradscope.instrument.statistics.core_statistics import WIDTH, as_bytes, core_statistics
from gradscope.instrument.taps import full_tensor
from gradscope.tracing.jaxpr.sharding import in_whole, varying, varying_axes

#: Of two digits of a count, the first counts so many of the second.
BASE: Final = 2**16

#: The counts of each bin that are added up at the end.
_BESIDE = 128


def statistics_and_histogram(value: Any) -> Any:
    """Returns the vector of `core_statistics`, then two digits for each bin of the histogram; an observer.

    Args:
        value: An array of any shape; of a complex one the magnitudes are counted, of a typed PRNG key its data.
    """
    constant = as_bytes(jax.lax.stop_gradient(full_tensor(value)))
    digits = in_whole(partial(jax.lax.platform_dependent, cpu=_on_host, default=_on_device))(constant)
    return jnp.concatenate([core_statistics(value), digits])


def histogram_of(vector: np.ndarray) -> ValueHistogram | None:
    """Returns the histogram of values in a vector; None where it has none."""
    if vector.size != WIDTH + 2 * BINS:
        return None
    digits = vector[WIDTH:].reshape(-1, 2).astype(np.int64)
    return ValueHistogram.of(digits[:, 0] * BASE + digits[:, 1])


def _on_host(value: Any) -> Any:
    shape = jax.ShapeDtypeStruct((2 * BINS,), jnp.float32)
    return varying(made_on_host(_counted_digits, shape, value), varying_axes([value]))


def _counted_digits(operand: np.ndarray) -> np.ndarray:
    return np.stack(np.divmod(counted(operand), BASE), axis=1).astype(np.float32).reshape(-1)


def _on_device(value: Any) -> Any:
    bits = jax.lax.bitcast_convert_type(as_float32(value.reshape(-1)), jnp.uint32)
    magnitude = (bits & 0x7FFFFFFF).astype(jnp.int32)
    number = jnp.where(magnitude == 0, 0, (magnitude >> SHIFT) + 1)
    at = BINS_PER_SIGN + jnp.where(bits >> 31 == 0, number, -number)
    # What is not finite is beyond the bins of its sign, and dropped.
    at = jnp.where(number > BINS_PER_SIGN, BINS, at)
    return digits_of(tally(at, BINS))


def tally(at: Any, bins: int) -> Any:
    """Returns how often each number below that of the bins occurs, on the device; larger ones are dropped."""
    # Most elements are in a few bins, and additions to one number wait for each other: neighbours add to several.
    beside = jax.lax.iota(jnp.int32, at.size) % _BESIDE
    counts = jnp.zeros(bins * _BESIDE, jnp.int32).at[at * _BESIDE + beside].add(1, mode="drop")
    return counts.reshape(bins, _BESIDE).sum(axis=1)


def digits_of(counts: Any) -> Any:
    """Returns two digits of each of some counts, as float32, on the device."""
    return jnp.stack([counts // BASE, counts % BASE], axis=1).astype(jnp.float32).reshape(-1)


def as_float32(value: Any) -> Any:
    """Returns a value as float32, in which what is finite stays so and what is not zero stays that."""
    narrow = value.astype(jnp.float32)
    if jnp.finfo(value.dtype).bits <= jnp.finfo(jnp.float32).bits:
        return narrow
    ends = jnp.finfo(jnp.float32)
    clipped = jnp.where(jnp.isinf(narrow) & jnp.isfinite(value), ends.max, narrow)
    clipped = jnp.where((clipped == 0) & (value != 0), ends.smallest_subnormal, jnp.abs(clipped))
    return jnp.where(jnp.isnan(value), narrow, jnp.copysign(clipped, value.astype(jnp.float32)))
