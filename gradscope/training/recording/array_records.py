"""Makes the record of a dump from an array of a program, and the array from what a dump has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.arrays.dtypes import dtype_name
from gradscope.dump.record import Record, SiteFacts
from gradscope.instrument.taps import full_tensor


def record_of(key: str, leaf: Any, *, index: int = 0) -> Record:
    """Returns the record of an array under a key, with its place among others."""
    family, name = naming.split_key(key)
    array = np.asarray(full_tensor(leaf))
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    dtype = str(leaf.dtype) if is_key else dtype_name(array.dtype)
    shape = tuple(leaf.shape)
    return Record(
        family=family, name=name, shape=shape, dtype=dtype, stats={}, site=SiteFacts(index=index), array=array
    )


def array_like(array: np.ndarray, leaf: Any) -> Any:
    """Returns an array from a dump as a typed key where the leaf that it stands for is one."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return array
    return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
