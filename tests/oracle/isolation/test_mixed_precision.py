"""Layers in float32 behind layers in bfloat16 read the reference's values, and are judged as float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.oracle.isolation.isolating import of_losses, wrong
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

_WIDTH = 16
_PARAMS = {
    name: 0.4 * jax.random.normal(jax.random.key(number), (_WIDTH, _WIDTH))
    for number, name in enumerate(["in", "up", "down", "head"])
} | {"scale": jnp.ones(_WIDTH)}
_X = jax.random.normal(jax.random.key(9), (8, _WIDTH))


def _narrow(x: Any, kernel: Any) -> Any:
    return x.astype(jnp.bfloat16) @ kernel.astype(jnp.bfloat16)


def _loss(params: Any, x: Any, fault: str = "") -> Any:
    def times(h: Any, name: str) -> Any:
        return 1.01 * h if fault == name else h + 0.01 * (jax.lax.stop_gradient(h) - h) if fault == f"d {name}" else h

    with jax.named_scope("in"):
        h = _narrow(x, params["in"])
    with jax.named_scope("up"):
        h = _narrow(jax.nn.gelu(h), params["up"])
    with jax.named_scope("down"):
        h = _narrow(jax.nn.gelu(h), params["down"])
    with jax.named_scope("norm"):
        h = h.astype(jnp.float32)
        h = times(h * jax.lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-6) * params["scale"][None], "norm")
    with jax.named_scope("head"):
        h = times(jnp.tanh(h @ params["head"]), "head")
    with jax.named_scope("out"):
        return times((h**2).mean(), "out")


@sampled("fault", ["", "head", "d head"])
def test_one_per_cent_in_a_layer_in_float32_is_seen(fault: str) -> None:
    """The norm reads bfloat16, which the compiler may hand on with more digits, and is no more wrong than that."""
    found = of_losses(_loss, partial(_loss, fault=fault), _PARAMS, _X)
    assert wrong(found) == ([fault.removeprefix("d ")] if fault else [])
    tolerances = {row.name: row.forward.tolerance for row in found.rows if row.forward is not None}
    assert tolerances["head"] == pytest.approx(1e-4)
    assert tolerances["norm"] == tolerances["up"] == pytest.approx(2e-2)
