"""Float64 for as long as a proof takes, at the numbers that the model has in its own precision."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np


def wide_types() -> AbstractContextManager[None]:
    """JAX with 64-bit types."""
    library: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # where it was before 0.8
    return library.enable_x64(True)


def widened(leaf: Any) -> Any:
    """An array with its numbers in float64 or complex128; integers, keys and the like as they are."""
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return jnp.asarray(np.asarray(leaf).astype(np.complex128))
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(np.asarray(leaf).astype(np.float64))
    return leaf
