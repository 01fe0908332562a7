"""Steps of networks of sequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.drawn.steps import Draw, Step, dense_weights, norm_weights

Array = Any

#: The number of heads of an attention.
HEADS = 2


def attention(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A residual self-attention behind a layer norm, with one packed projection, and one for each part in the port."""
    steps, width = shape
    causal = draw.one_of(False, True)
    mask = np.tril(np.ones((steps, steps), bool)) if causal else np.ones((steps, steps), bool)

    def mixed(q: Array, k: Array, v: Array, scale: float, mask: Array) -> Array:
        q, k, v = (each.reshape(*each.shape[:2], HEADS, -1) for each in (q, k, v))
        scores = jnp.where(mask, jnp.einsum("nqhd,nkhd->nhqk", q, k) * scale, -1e9)
        return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v).reshape(*v.shape[:2], width)

    scale = (width // HEADS) ** -0.5

    def reference(weights: Any, x: Array) -> Array:
        with jax.named_scope("norm"):
            y = torch_like.layer_norm(weights["norm"], x)
        with jax.named_scope("in_proj"):
            packed = torch_like.linear(weights["in_proj"], y)
        y = mixed(*jnp.split(packed, 3, axis=-1), scale, mask)
        with jax.named_scope("out_proj"):
            y = torch_like.linear(weights["out_proj"], y)
        return x + y

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        with jax.named_scope("LayerNorm_0"):
            y = flax_like.layer_norm(weights["LayerNorm_0"], x, epsilon=1e-2 if fault == "epsilon" else 1e-5)
        parts: list[Array] = []
        for name in ("query", "key", "value"):
            with jax.named_scope(name):
                parts.append(flax_like.dense(weights[name], y, bias=(fault, name) != ("no bias", "query")))
        if fault == "no gradient":
            parts[1] = jax.lax.stop_gradient(parts[1])
        used = scale if fault != "scale" else width**-0.5
        y = mixed(*parts, used, mask if fault != "mask" else mask.T)
        with jax.named_scope("out"):
            y = flax_like.dense(weights["out"], y)
        return y if fault == "no skip" else x + y

    def ported(weights: Any) -> Any:
        packed = weights["in_proj"]
        kernels, biases = np.split(packed["weight"], 3), np.split(packed["bias"], 3)
        parts = {name: {"kernel": kernel.T, "bias": bias}
                 for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True)}  # fmt: skip
        return {
            "LayerNorm_0": norm_weights(weights["norm"]), **parts, "out": dense_weights(weights["out_proj"])
        }  # fmt: skip

    return Step(
        kind="attn",
        port_kind="SelfAttention",
        weights={
            "norm": draw.norm(width),
            "in_proj": draw.linear(width, 3 * width),
            "out_proj": draw.linear(width, width),
        },
        ported=ported,
        reference=reference,
        candidate=candidate,
        faults=("epsilon", "no bias", "no gradient", "scale", "no skip", *(("mask",) if causal else ())),
        shape=shape,
    )


def perceptron(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A residual perceptron of two layers behind a layer norm."""
    width = shape[1]
    exact = draw.one_of(False, True)

    def reference(weights: Any, x: Array) -> Array:
        with jax.named_scope("norm"):
            y = torch_like.layer_norm(weights["norm"], x)
        with jax.named_scope("fc1"):
            y = torch_like.linear(weights["fc1"], y)
        y = jax.nn.gelu(y, approximate=not exact)
        with jax.named_scope("fc2"):
            y = torch_like.linear(weights["fc2"], y)
        return x + y

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        with jax.named_scope("LayerNorm_0"):
            y = flax_like.layer_norm(weights["LayerNorm_0"], x, epsilon=1e-2 if fault == "epsilon" else 1e-5)
        with jax.named_scope("Dense_0"):
            y = flax_like.dense(weights["Dense_0"], y, bias=fault != "no bias")
        y = jax.nn.gelu(y, approximate=exact if fault == "activation" else not exact)
        with jax.named_scope("Dense_1"):
            y = flax_like.dense(weights["Dense_1"], y)
        return (jax.lax.stop_gradient(x) if fault == "no gradient" else x) + y

    return Step(
        kind="mlp",
        port_kind="FeedForward",
        weights={
            "norm": draw.norm(width),
            "fc1": draw.linear(width, 2 * width),
            "fc2": draw.linear(2 * width, width),
        },
        ported=lambda weights: {
            "LayerNorm_0": norm_weights(weights["norm"]),
            "Dense_0": dense_weights(weights["fc1"]),
            "Dense_1": dense_weights(weights["fc2"]),
        },
        reference=reference,
        candidate=candidate,
        faults=("epsilon", "no bias", "activation", "no gradient"),
        shape=shape,
    )


def linear(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A dense layer at each position."""
    steps, width = shape
    outputs = draw.one_of(width, width + 4)

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        y = flax_like.dense(weights, x, bias=fault != "no bias")
        return jax.nn.relu(y) if fault == "activation" else y

    return Step(
        kind="proj",
        port_kind="Dense",
        weights=draw.linear(width, outputs),
        ported=dense_weights,
        reference=torch_like.linear,
        candidate=candidate,
        faults=("no bias", "activation"),
        shape=(steps, outputs),
    )


def rms_norm(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A norm by the root of the mean square."""

    def normed(x: Array, scale: Array, epsilon: float) -> Array:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon) * scale

    return Step(
        kind="rms",
        port_kind="RMSNorm",
        weights={"weight": draw.normal(shape[1], scale=0.2, mean=1.0)},
        ported=lambda weights: {"scale": weights["weight"]},
        reference=lambda weights, x: normed(x, weights["weight"], 1e-6),
        candidate=lambda weights, x, fault: normed(
            x, weights["scale"] + (fault == "plus one"), 1e-2 if fault == "epsilon" else 1e-6
        ),
        faults=("epsilon", "plus one"),
        shape=shape,
    )


def local(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A convolution over time that sees no later step, followed by a gate."""
    steps, width = shape

    def reference(weights: Any, x: Array) -> Array:
        y = jax.lax.conv_general_dilated(
            x.swapaxes(1, 2), weights["weight"], (1,), [(2, 0)], dimension_numbers=("NCH", "OIH", "NCH")
        )
        y = y + weights["bias"][:, None]
        value, gate = jnp.split(y, 2, axis=1)
        return (value * jax.nn.sigmoid(gate)).swapaxes(1, 2)

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        padding = [(1, 1)] if fault == "padding" else [(2, 0)]
        y = jax.lax.conv_general_dilated(x, weights["kernel"], (1,), padding, dimension_numbers=("NHC", "HIO", "NHC"))
        value, gate = jnp.split(y + weights["bias"], 2, axis=-1)
        return gate * jax.nn.sigmoid(value) if fault == "halves" else value * jax.nn.sigmoid(gate)

    return Step(
        kind="glu",
        port_kind="GatedConv",
        weights={
            "weight": draw.normal(2 * width, width, 3, scale=(3 * width) ** -0.5),
            "bias": draw.normal(2 * width, scale=0.2),
        },
        ported=lambda weights: {"kernel": weights["weight"].transpose(2, 1, 0), "bias": weights["bias"]},
        reference=reference,
        candidate=candidate,
        faults=("padding", "halves"),
        shape=(steps, width),
    )


#: What makes the steps of a network of sequences.
STEPS = (attention, attention, perceptron, perceptron, linear, rms_norm, local)
