"""What tests that train in this process share."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module")
def usual_promotion() -> Iterator[None]:
    """JAX as users have it: the optimizers of optax add integers to floating-point numbers."""
    before = jax.config.jax_numpy_dtype_promotion
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_numpy_dtype_promotion", before)
