"""The functions of single elements are those of JAX, and flat where their derivative is zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, FLAT

#: Between the numbers at which pieces of functions meet.
X = np.linspace(-7.03, 7.04, 60).astype(np.float32)

IN_JAX: dict[str, Callable[..., Any]] = {
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "gelu by tanh": jax.nn.gelu,
    "gelu by erf": partial(jax.nn.gelu, approximate=False),
    "softplus": jax.nn.softplus,
    "elu": jax.nn.elu,
    "relu6": jax.nn.relu6,
    "leaky_relu of slope 0.01": jax.nn.leaky_relu,
    "leaky_relu of slope 0.2": partial(jax.nn.leaky_relu, negative_slope=0.2),
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_sigmoid of slope 0.2": lambda x: jnp.clip(0.2 * x + 0.5, 0, 1),
    "hard_swish": jax.nn.hard_swish,
    "gelu by sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "mish": jax.nn.mish,
    "selu": jax.nn.selu,
    "squared relu": lambda x: jax.nn.relu(x) ** 2,
    "square": jnp.square,
    "sin": jnp.sin,
    "softsign": jax.nn.soft_sign,
}


def test_all_functions_are_compared() -> None:
    assert ELEMENTWISE.keys() == IN_JAX.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_JAX)
def test_a_function_is_that_of_jax(name: str) -> None:
    np.testing.assert_allclose(ELEMENTWISE[name](X), IN_JAX[name](X), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", FLAT)
def test_a_function_is_flat_where_its_derivative_is_zero(name: str) -> None:
    derivatives = np.asarray(jax.vmap(jax.grad(IN_JAX[name]))(X))
    np.testing.assert_array_equal(FLAT[name](X), derivatives == 0)
