"""The gradient of a bias before a batch norm is zero but for rounding, also of a program that computes in bfloat16.

XLA adds numbers of bfloat16 in bfloat16 on CPUs, so that a sum of hundreds of them is off by a large part of its terms.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import gradscope as gs
from tests.support.data import drawn
from tests.support.ports.drawn.network import drawn_port

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

EXAMPLES, WIDTH = 600, 6


@pytest.mark.slow
def test_a_network_in_bfloat16_is_the_one_in_float32() -> None:
    found = drawn_port(117, precision="bfloat16").compared()  # a convolution with a bias before a batch norm
    assert found.verdict == "same", found.sentence


@cache
def captured(dtype: Any, *, is_mean_fixed: bool = False) -> gs.Dump:
    """Returns the dump of a layer with a bias before a batch norm, which may take its mean for a constant."""

    def loss(weights: dict[str, Any], x: Any, target: Any) -> Any:
        weights, x = jax.tree.map(lambda each: each.astype(dtype), (weights, x))
        with jax.named_scope("dense"):
            y = x @ weights["kernel"] + weights["bias"]
        with jax.named_scope("norm"):
            mean, square = y.mean(0), jnp.square(y).mean(0)
            if is_mean_fixed:
                mean = lax.stop_gradient(mean)
            y = (y - mean) * lax.rsqrt(square - jnp.square(mean) + jnp.asarray(1e-5, dtype)) + weights["shift"]
        return jnp.square(jax.nn.relu(y).astype(jnp.float32) - target).mean()

    weights = {"kernel": drawn(1, 4, WIDTH, scale=0.5), "bias": drawn(2, WIDTH), "shift": drawn(3, WIDTH)}
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, drawn(4, EXAMPLES, 4), drawn(5, EXAMPLES, WIDTH), origins=False)


def test_a_bias_before_a_batch_norm_has_no_gradient_in_bfloat16() -> None:
    found = gs.compare(captured(jnp.float32), captured(jnp.bfloat16))
    assert found.verdict == "same", found.sentence


@pytest.mark.slow
def test_a_batch_norm_of_bfloat16_that_takes_its_mean_for_a_constant_is_different() -> None:
    found = gs.compare(captured(jnp.float32), captured(jnp.bfloat16, is_mean_fixed=True))
    assert found.verdict == "different"
    assert found.first_divergence.backward is not None
    assert found.first_divergence.backward.name == "dense"
