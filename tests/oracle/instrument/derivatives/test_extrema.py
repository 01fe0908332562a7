"""Cotangents pass maxima and minima whole, however the compiler fuses what made their operand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import gradscope as gs
from tests.oracle.engine import Probe, check, expected, layer, observe, unprobed
from tests.support.sampled import sampled

#: The axes of a pooling of 2 by 2 that `reshape` makes.
WINDOWS = (2, 4)

EXTREMA = [jnp.max, jnp.min]


def normalized(weights: Any, x: Any) -> Any:
    """A normalisation, which XLA computes again, rounded otherwise, in each loop that reads it."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) * (jax.lax.rsqrt(variance + 1e-5) * weights["scale"]) + weights["bias"]


def pooling(extremum: Callable[..., Any], weights: Any, x: Any, probe: Probe = unprobed) -> Any:
    x = layer("dense", lambda: x @ weights["kernel"], probe=probe)
    x = layer("norm", normalized, weights, x, probe=probe)
    x = layer("pool", lambda: extremum(x.reshape(-1, 2, 2, 2, 2, 8), axis=WINDOWS), probe=probe)
    return jnp.square(jnp.tanh(x)).mean()


def drawn(seed: int) -> tuple[dict[str, Any], Any]:
    draw = np.random.default_rng(seed)
    weights = {
        "kernel": draw.normal(size=(6, 8)),
        "scale": draw.normal(size=(1, 1, 8)),
        "bias": draw.normal(size=(1, 1, 8)),
    }
    return jax.tree.map(jnp.float32, weights), jnp.float32(draw.normal(size=(4, 16, 6)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@sampled("extremum", EXTREMA)
def test_every_window_hands_its_cotangent_on(extremum: Callable[..., Any], seed: int) -> None:
    weights, x = drawn(seed)
    with jax.default_matmul_precision("highest"):
        found = observe(partial(pooling, extremum), weights, x).seen["norm"].gradient
        right = expected(partial(pooling, extremum), weights, x)["norm"].gradient
    assert np.count_nonzero(found) == np.count_nonzero(right) == 4 * 4 * 8
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-7)


def test_so_do_the_terms_of_its_operand() -> None:
    weights, x = drawn(1)
    dump = gs.capture(partial(pooling, jnp.max), weights, x, ops="inputs")
    assert np.count_nonzero(dump["term/pool/reduce_max.0"]) == 4 * 4 * 8


@pytest.mark.slow
def test_a_maximum_in_a_scan_and_in_shards() -> None:
    """JAX's own gradient is NaN here once it is compiled (0.10.2): no element equals the maximum."""
    weights, x = drawn(2)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("data")

    def most(x: Any) -> Any:
        return normalized(weights, x).max(axis=1)

    def loss(most: Callable[..., Any], weights: Any, x: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            made = layer("norm", normalized, weights, carry)
            return made - made.max(axis=1, keepdims=True), None

        carry, _ = jax.lax.scan(step, x @ weights["kernel"], length=3)
        return jnp.square(jnp.tanh(most(carry))).mean()

    seen = observe(partial(loss, jax.shard_map(most, mesh=mesh, in_specs=split, out_specs=split)), weights, x)
    with jax.disable_jit():
        right = jax.grad(partial(loss, most))(weights, x)
    for name, gradient in right.items():
        np.testing.assert_allclose(seen.params[name], gradient, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_its_derivative_is_differentiated_again() -> None:
    weights, x = drawn(3)

    def squared(gradient: Callable[..., Any], weights: Any) -> Any:
        return sum(jnp.square(each).sum() for each in jax.tree.leaves(gradient(weights)))

    def loss(weights: Any) -> Any:
        return pooling(jnp.max, weights, x)

    observed = gs.value_and_grad(loss)
    found = jax.jit(jax.grad(partial(squared, lambda weights: observed(weights)[0][1])))(weights)
    with jax.disable_jit():  # JAX's own is NaN once it is compiled (0.10.2)
        right = jax.grad(partial(squared, jax.grad(loss)))(weights)
    for name, gradient in right.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_ties_share_the_cotangent() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        made = layer("rounded", lambda: jnp.round(x @ weight) + (x @ weight) * 0.0, probe=probe)
        return jnp.square(layer("most", lambda: made.max(axis=1), probe=probe)).sum()

    check(loss, jnp.ones((3, 5)), jnp.ones((2, 3)), twin=loss)
