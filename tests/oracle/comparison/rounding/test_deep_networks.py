"""Where rounding may add up to an error over the default tolerance, the sentence of the verdict says so."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled


@cache
def _network(depth: int, dtype: str, factor: float = 1.0) -> Dump:
    """A network without residuals, whose layers multiply by a factor."""

    def loss(kernels: Any, read: Any) -> Any:
        for number, kernel in enumerate(kernels):
            with jax.named_scope(f"dense{number}"):
                read = factor * jnp.tanh(read.astype(dtype) @ kernel.astype(dtype)).astype(jnp.float32)
        return jnp.square(read).mean()

    rng = np.random.default_rng(0)
    kernels = [rng.normal(size=(32, 32)).astype(np.float32) / 4 for _ in range(depth)]
    return gs.capture(loss, kernels, rng.normal(size=(16, 32)).astype(np.float32), origins=False)


@sampled(("depth", "wide"), [(3, False), (24, True)])
def test_tensors_that_rounding_may_make_are_counted(depth: int, wide: bool) -> None:
    found = gs.compare(_network(depth, "float32"), _network(depth, "bfloat16"))
    assert found, found.sentence
    accumulated = [row.name for row in found.rows if row.accumulated]
    assert bool(accumulated) is wide
    assert (f"; {len(accumulated)} over the default tolerance, as rounding may add up, " in found.sentence) is wide
    assert all(row.tolerance is not None for row in found.rows if row.accumulated)


@pytest.mark.slow
def test_a_fault_is_counted_nowhere() -> None:
    found = gs.compare(_network(24, "float32"), _network(24, "bfloat16", 1.3))
    assert not found
    assert "as rounding may add up" not in found.sentence
