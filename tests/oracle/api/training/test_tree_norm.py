"""The norm of all parameters and gradients of a step, in types whose squares are out of range."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.training.optimizers.tree_norm import tree_norm


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "complex64"])
def test_the_norm_is_that_of_the_values_in_float64(dtype: str) -> None:
    tree = {"a": jnp.asarray([320.0, -448.0, 1.5]).astype(dtype), "b": jnp.linspace(0.0, 1.0, 5), "c": None}
    wide = np.concatenate([np.asarray(tree[name]).astype(np.complex128) for name in "ab"])
    assert float(tree_norm(tree)) == pytest.approx(np.linalg.norm(wide), rel=1e-6)


@pytest.mark.slow
def test_parameters_of_eight_bits_beside_others_are_trained() -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ params["w"].astype(jnp.float32) + params["b"][None]))

    step = gs.train_step(loss, "sgd(0.5)")
    before = step.init({"w": jnp.ones((4, 2), jnp.float8_e5m2), "b": jnp.zeros(2)})
    after, seen = step(before, jnp.linspace(-1.0, 1.0, 12).reshape(3, 4))
    assert after.params["w"].dtype == jnp.float8_e5m2
    assert all(np.isfinite(float(seen.numbers[name])) for name in ("grad_norm", "update_norm", "param_norm"))
