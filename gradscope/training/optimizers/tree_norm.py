"""`tree_norm` is the l2 norm of all arrays of a pytree together."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import optax

_SINGLE: Final = jnp.dtype("float32")


def tree_norm(tree: Any) -> Any:
    """Returns the l2 norm of all arrays of a pytree together, a scalar of float32 or wider.

    Squares of narrow types are out of their range where the norm is not: those of 300 in float16.
    """
    return optax.tree.norm(jax.tree_util.tree_map(_wide, tree))


def _wide(array: Any) -> Any:
    is_narrow = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < _SINGLE.itemsize
    return array.astype(_SINGLE) if is_narrow else array
