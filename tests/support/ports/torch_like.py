"""Layers as PyTorch has them, in `jax.lax`: channels first, kernels `[out, in, ...]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any
Weights = Mapping[str, Any]

_CONV = ("NCHW", "OIHW", "NCHW")


def linear(weights: Weights, x: Array) -> Array:
    return x @ weights["weight"].T + weights["bias"]


def conv(weights: Weights, x: Array, *, padding: int = 1, stride: int = 1, groups: int = 1) -> Array:
    y = lax.conv_general_dilated(
        x,
        weights["weight"],
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=_CONV,
        feature_group_count=groups,
    )
    return y + weights["bias"][:, None, None]


def conv_transpose(weights: Weights, x: Array) -> Array:
    """Kernel `[in, out, kh, kw]` of odd size, stride 2, no padding: `torch.nn.ConvTranspose2d`."""
    kernel = jnp.flip(weights["weight"], (2, 3)).transpose(1, 0, 2, 3)
    edge = kernel.shape[-1] - 1
    y = lax.conv_general_dilated(x, kernel, (1, 1), [(edge, edge)] * 2, lhs_dilation=(2, 2), dimension_numbers=_CONV)
    return y + weights["bias"][:, None, None]


def batch_norm(weights: Weights, x: Array, *, momentum: float = 0.1, epsilon: float = 1e-5) -> tuple[Array, Weights]:
    """The output, and the new running statistics, with the biased variance."""
    axes = (0, *range(2, x.ndim))
    mean, var = x.mean(axes), x.var(axes)
    shape = (-1,) + (1,) * (x.ndim - 2)
    y = (x - mean.reshape(shape)) / jnp.sqrt(var.reshape(shape) + epsilon)
    y = y * weights["weight"].reshape(shape) + weights["bias"].reshape(shape)
    old = weights["running_mean"], weights["running_var"]
    new = [(1 - momentum) * before + momentum * now for before, now in zip(old, (mean, var), strict=True)]
    return y, {"running_mean": new[0], "running_var": new[1]}


def group_norm(weights: Weights, x: Array, groups: int, *, epsilon: float = 1e-5) -> Array:
    n, c, h, w = x.shape
    parts = x.reshape(n, groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / jnp.sqrt(parts.var(-1, keepdims=True) + epsilon)
    return parts.reshape(n, c, h, w) * weights["weight"][:, None, None] + weights["bias"][:, None, None]


def layer_norm(weights: Weights, x: Array, *, epsilon: float = 1e-5) -> Array:
    y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + epsilon)
    return y * weights["weight"] + weights["bias"]


def max_pool(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def attention(weights: Weights, x: Array, heads: int) -> Array:
    """Self-attention with the packed weight `[3 width, width]` of `torch.nn.MultiheadAttention`."""
    n, t, width = x.shape
    qkv = x @ weights["in_proj_weight"].T + weights["in_proj_bias"]
    q, k, v = (part.reshape(n, t, heads, -1).transpose(0, 2, 1, 3) for part in jnp.split(qkv, 3, axis=-1))
    shares = jax.nn.softmax(q @ k.swapaxes(-1, -2) / (width // heads) ** 0.5)
    return (shares @ v).transpose(0, 2, 1, 3).reshape(n, t, width) @ weights["out_proj_weight"].T


def lstm(weights: Weights, xs: Array) -> Array:
    """The last hidden state; the gates are in PyTorch's order: input, forget, cell, output."""
    width = weights["weight_hh"].shape[1]
    h = c = jnp.zeros((xs.shape[0], width))
    for t in range(xs.shape[1]):
        with jax.named_scope(f"step{t}"):
            gates = xs[:, t] @ weights["weight_ih"].T + h @ weights["weight_hh"].T + weights["bias"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h


def cross_entropy(logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()
