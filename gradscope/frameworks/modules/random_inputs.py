"""Random inputs are arrays with the shapes, dtypes and distributions of input specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gradscope.errors import UsageError
from gradscope.frameworks.modules.input_spec import InputSpec


def random_inputs(key: Array, specs: Mapping[str, InputSpec]) -> dict[str, Array]:
    """Returns a random array for each spec.

    Args:
        key: The key, which is split over the specs.
        specs: The specs, by name.

    Returns:
        The arrays by name.
    """
    keys = jax.random.split(key, max(1, len(specs)))
    return {name: _random_array(keys[at], spec) for at, (name, spec) in enumerate(specs.items())}


def require_representable(spec: InputSpec) -> None:
    """Raises `UsageError` for a dtype that JAX would narrow.

    Raises:
        UsageError: It is a 64-bit one and 64-bit types are not enabled.
    """
    if narrowed(spec) != spec:
        raise UsageError(f"an input of {spec.dtype} needs 64-bit types", hint="add --x64, or use a 32-bit dtype")


def narrowed(spec: InputSpec) -> InputSpec:
    """Returns the spec with the dtype that JAX has for it: 32 bits in place of 64 unless 64-bit types are enabled."""
    dtype = jax.dtypes.canonicalize_dtype(jnp.dtype(spec.dtype))
    return spec if dtype == jnp.dtype(spec.dtype) else replace(spec, dtype=dtype.name)


def _random_array(key: Array, spec: InputSpec) -> Array:
    dtype, values = jnp.dtype(spec.dtype), spec.values
    if values.kind == "constant":
        return jnp.full(spec.shape, values.numbers[0], dtype)
    if values.kind == "binary":
        return jax.random.bernoulli(key, 0.5, spec.shape).astype(dtype)
    if values.kind == "one-hot":
        return jax.nn.one_hot(jax.random.randint(key, spec.shape[:-1], 0, spec.shape[-1]), spec.shape[-1], dtype=dtype)
    first, second = values.numbers
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jax.random.randint(key, spec.shape, int(first), int(second), _wide(dtype, jnp.int32)).astype(dtype)
    wide = _wide(dtype, jnp.float32)
    if values.kind == "normal":
        array = jax.random.normal(key, spec.shape, wide) * jnp.asarray(second, wide) + jnp.asarray(first, wide)
    else:
        array = jax.random.uniform(key, spec.shape, wide, first, second)
    return array.astype(dtype)


def _wide(dtype: Any, at_least: Any) -> Any:
    """Returns the dtype in which random numbers are generated."""
    # JAX generates no booleans and no 4-bit numbers, and narrow numbers coarsely.
    return dtype if jnp.dtype(dtype).itemsize >= jnp.dtype(at_least).itemsize else at_least
