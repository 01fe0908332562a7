"""Kinds of numbers in words: what has to agree where a width of numbers does not matter."""

from __future__ import annotations

from typing import Any, Final

import jax.numpy as jnp

_KINDS: Final = (
    (jnp.bool_, "boolean"),
    (jnp.integer, "integer"),
    (jnp.floating, "floating-point"),
    (jnp.complexfloating, "complex"),
)


def kind_of(dtype: Any) -> str:
    """What sort of numbers a dtype holds, in words; the dtype's own name for what are none."""
    return next((kind for general, kind in _KINDS if jnp.issubdtype(dtype, general)), str(dtype))
