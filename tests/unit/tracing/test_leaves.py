"""The shape of a leaf is changed in one respect, and the others stay, in every version of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.leaves import changed


@pytest.mark.parametrize("weak", [False, True])
def test_a_shape_with_another_dtype_or_sharding_is_otherwise_the_same(weak: bool) -> None:
    here, there = (jax.sharding.SingleDeviceSharding(jax.devices()[at]) for at in (0, -1))
    leaf = jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=here, weak_type=weak)
    assert changed(leaf, dtype=jnp.bfloat16) == jax.ShapeDtypeStruct(
        (2, 3), jnp.bfloat16, sharding=here, weak_type=weak
    )
    assert changed(leaf, sharding=there) == jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=there, weak_type=weak)
