"""Two arrays are compared for a record: two gradients by their cosine, a parameter with itself before the step.

As statistics, they are computed by NumPy where the CPU is the device: there XLA takes 2.3 ns per element for the cosine
and 0.5 ns for the comparison, NumPy a tenth, and a comparison ends at the first block that differs.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.moments import inner
from gradscope.instrument.host_calls import made_on_host
from gradscope.tracing.jaxpr.sharding import varying, varying_axes

#: Elements that are compared before all others: most parameters differ in them.
_FIRST: Final = 1 << 10

#: What stands for the cosine of an array of zeros. No NaN does: under `jax_debug_nans` it would stop the user's step.
NO_COSINE: Final = 2.0

#: Mean squares in this range neither overflow nor lose digits in float32, in the sum of a row of `inner`.
_SQUARABLE: Final = (2.0**-60, 2.0**100)

_WIDE: Final = (np.dtype(np.float32), np.dtype(np.float64))
_SCALAR: Final = jax.ShapeDtypeStruct((), jnp.float32)


def cosine(one: Any, other: Any) -> Any:
    """Returns the cosine of two gradients, a 0-d float32; `NO_COSINE` where one of them is zero."""
    return jax.lax.platform_dependent(one, other, cpu=_cosine_from_host, default=cosine_on_device)


def is_same(new: Any, old: Any) -> Any:
    """Returns whether all elements of two arrays are equal, a 0-d bool; a NaN is equal to nothing."""
    return jax.lax.platform_dependent(new, old, cpu=_is_same_from_host, default=lambda new, old: (new == old).all())


def _cosine_from_host(one: Any, other: Any) -> Any:
    return varying(made_on_host(_cosine, _SCALAR, one, other), varying_axes([one, other]))


def _is_same_from_host(new: Any, old: Any) -> Any:
    return varying(made_on_host(_is_same, _SCALAR, new, old), varying_axes([new, old])) != 0


def _cosine(one: Array, other: Array) -> np.ndarray:
    # NumPy only: any JAX operation in a callback may wait for the step that runs the callback.
    products = np.zeros(3)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for here, there in zip(blocks(one), blocks(other), strict=True):
            a, b = _real_parts(here), _real_parts(there)
            products += (inner(a, b), inner(a, a), inner(b, b))
        low, high = (limit * max(one.size, 1) for limit in _SQUARABLE)
        if not (low < products[1] < high and low < products[2] < high):
            products = _scaled_products(one, other)
        found = products[0] / np.sqrt(products[1] * products[2])
    return np.array(NO_COSINE if np.isnan(found) else found, np.float32)


def _scaled_products(one: Array, other: Array) -> np.ndarray:
    """Returns the products with each array scaled to a largest element of one: its squares overflow, or underflow."""
    scales = [max((float(np.abs(_real_parts(each)).max()) for each in blocks(array)), default=0.0)
              for array in (one, other)]  # fmt: skip
    products = np.zeros(3)
    for here, there in zip(blocks(one), blocks(other), strict=True):
        a = _real_parts(here).astype(np.float64) / scales[0]
        b = _real_parts(there).astype(np.float64) / scales[1]
        products += (inner(a, b), inner(a, a), inner(b, b))
    return products


def _real_parts(block: Array) -> Array:
    """Returns a block as float32 or float64; of complex elements, the real and imaginary parts in turn."""
    if block.dtype.kind == "c":
        return block.view(f"f{block.dtype.itemsize // 2}")
    return block if block.dtype in _WIDE else block.astype(np.float32)


def _is_same(new: Array, old: Array) -> np.ndarray:
    if not np.equal(new.reshape(-1)[:_FIRST], old.reshape(-1)[:_FIRST]).all():
        return np.zeros((), np.float32)
    same = all(np.equal(here, there).all() for here, there in zip(blocks(new), blocks(old), strict=True))
    return np.array(same, np.float32)


def cosine_on_device(one: Any, other: Any) -> Any:
    """Returns the same as `cosine`, computed by JAX itself."""
    wide = one.dtype if jnp.finfo(one.dtype).bits >= jnp.finfo(jnp.float32).bits else jnp.float32
    # Each is scaled to a largest element of one: the squares of small gradients underflow.
    one, other = (each.astype(wide) / jnp.abs(each).max(initial=0).astype(wide) for each in (one, other))
    # As sums, which need no flat array: an array that is split over explicit axes has none.
    length = jnp.sqrt(_power(one)) * jnp.sqrt(_power(other))
    found = (one.conj() * other).real.sum() / length
    return jnp.where(jnp.isnan(found), NO_COSINE, found).astype(jnp.float32)


def _power(value: Any) -> Any:
    return (value.conj() * value).real.sum()
