"""A derivative rule that refuses to be told of a rate that is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def rated_by(factor: float = 1.0) -> Callable[[Any, Any], Any]:
    """Returns `rated(x, rate)`, which is `rate * tanh(x)`, with a rule that asserts that the rate is constant.

    Args:
        factor: What the rule's derivative with respect to `x` is multiplied by; other than 1 the rule is wrong.
    """

    @jax.custom_vjp
    def rated(x: Any, rate: Any) -> Any:
        return rate * jnp.tanh(x)

    def forward(x: Any, rate: Any) -> Any:
        assert not rate.perturbed
        return rated(x.value, rate.value), (x.value, rate.value)

    def backward(kept: Any, cotangent: Any) -> Any:
        x, rate = kept
        return factor * cotangent * rate / jnp.cosh(x) ** 2, jnp.zeros_like(rate)

    rated.defvjp(forward, backward, symbolic_zeros=True)
    return rated
