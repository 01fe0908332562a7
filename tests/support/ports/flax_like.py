"""Layers as JAX libraries have them: channels last, kernels `[..., in, out]`, each with the faults that it can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any
Weights = Mapping[str, Any]

_CONV = ("NHWC", "HWIO", "NHWC")


def dense(weights: Weights, x: Array, *, bias: bool = True) -> Array:
    y = x @ weights["kernel"]
    return y + weights["bias"] if bias else y


def conv(
    weights: Weights, x: Array, *, padding: Any = "SAME", stride: int = 1, groups: int = 1, bias: bool = True
) -> Array:
    y = lax.conv_general_dilated(
        x, weights["kernel"], (stride, stride), padding, dimension_numbers=_CONV, feature_group_count=groups
    )
    return y + weights["bias"] if bias else y


def conv_transpose(weights: Weights, x: Array) -> Array:
    return lax.conv_transpose(x, weights["kernel"], (2, 2), "VALID", dimension_numbers=_CONV) + weights["bias"]


def batch_norm(weights: Weights, x: Array, *, momentum: float = 0.9, epsilon: float = 1e-5) -> tuple[Array, Weights]:
    axes = tuple(range(x.ndim - 1))
    mean = x.mean(axes)
    var = jnp.square(x).mean(axes) - jnp.square(mean)
    y = (x - mean) * (lax.rsqrt(var + epsilon) * weights["scale"]) + weights["bias"]
    new = {name: momentum * weights[name] + (1 - momentum) * now for name, now in (("mean", mean), ("var", var))}
    return y, new


def group_norm(weights: Weights, x: Array, groups: int, *, epsilon: float = 1e-5) -> Array:
    parts = x.reshape(*x.shape[:-1], groups, -1)
    mean = parts.mean((1, 2, 4), keepdims=True)
    var = jnp.square(parts - mean).mean((1, 2, 4), keepdims=True)
    return ((parts - mean) * lax.rsqrt(var + epsilon)).reshape(x.shape) * weights["scale"] + weights["bias"]


def layer_norm(weights: Weights, x: Array, *, epsilon: float = 1e-5) -> Array:
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x).mean(-1, keepdims=True) - jnp.square(mean)
    return (x - mean) * (lax.rsqrt(var + epsilon) * weights["scale"]) + weights["bias"]


def pool(x: Array, mode: str) -> Array:
    if mode == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def dropout(x: Array) -> Array:
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
    return jnp.where(kept, x / 0.5, 0.0)


def attention(weights: Mapping[str, Weights], x: Array, heads: int) -> Array:
    """Self-attention with one kernel `[width, width]` for each of query, key and value."""
    parts = (dense(weights[name], x).reshape(*x.shape[:2], heads, -1) for name in ("query", "key", "value"))
    q, k, v = parts
    shares = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("nhqk,nkhd->nqhd", shares, v).reshape(x.shape) @ weights["out"]["kernel"]
