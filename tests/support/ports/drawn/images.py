"""Steps of networks of images."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.support.ports import flax_like, torch_like
from tests.support.ports.drawn.steps import Draw, Step, conv_weights, dense_weights, norm_weights

Array = Any


def conv(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A convolution of 3 x 3, strided or not, depthwise or not."""
    width, height, _ = shape
    stride = draw.one_of(1, 1, 2) if height >= 8 else 1
    groups = width if draw.one_of(False, False, True) else 1
    outputs = width if groups > 1 else draw.one_of(width, width + 4)

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        kernel = jnp.flip(weights["kernel"], (0, 1)) if fault == "flipped" else weights["kernel"]
        padding = [(0, 2), (0, 2)] if fault == "padding" else [(1, 1), (1, 1)]
        bias = fault != "no bias"
        return flax_like.conv(
            {**weights, "kernel": kernel}, x, padding=padding, stride=stride, groups=groups, bias=bias
        )

    return Step(
        kind="conv" if groups == 1 else "depthwise",
        port_kind="Conv",
        weights=draw.conv(width, outputs, groups=groups),
        ported=conv_weights,
        reference=lambda weights, x: torch_like.conv(weights, x, stride=stride, groups=groups),
        candidate=candidate,
        faults=("flipped", "padding", "no bias"),
        shape=(outputs, height // stride, height // stride),
    )


def batch_norm(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A batch norm that is trained; its running statistics are nobody's."""
    width = shape[0]
    still = {"running_mean": jnp.zeros(width), "running_var": jnp.ones(width)}

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        # As libraries have it, a batch norm computes in float32, and returns what it reads.
        wide = {name: each.astype(jnp.float32) for name, each in weights.items()}
        ported = {"mean": jnp.zeros(width), "var": jnp.ones(width), **wide}
        epsilon = 1e-2 if fault == "epsilon" else 1e-5
        return flax_like.batch_norm(ported, x.astype(jnp.float32), epsilon=epsilon)[0].astype(x.dtype)

    return Step(
        kind="bn",
        port_kind="BatchNorm",
        weights=draw.norm(width),
        ported=norm_weights,
        reference=lambda weights, x: torch_like.batch_norm({**weights, **still}, x)[0],
        candidate=candidate,
        faults=("epsilon",),
        shape=shape,
    )


def group_norm(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A group norm of two or four groups."""
    groups = draw.one_of(2, 4)
    return Step(
        kind="gn",
        port_kind="GroupNorm",
        weights=draw.norm(shape[0]),
        ported=norm_weights,
        reference=lambda weights, x: torch_like.group_norm(weights, x, groups),
        candidate=lambda weights, x, fault: flax_like.group_norm(
            weights, x, 1 if fault == "groups" else groups, epsilon=1e-2 if fault == "epsilon" else 1e-5
        ),
        faults=("epsilon", "groups"),
        shape=shape,
    )


def activation(draw: Draw, shape: tuple[int, ...]) -> Step:
    """An activation function."""
    name = draw.one_of("relu", "gelu", "silu", "leaky", "softplus")
    functions = {
        "relu": (jax.nn.relu, jax.nn.elu),
        "gelu": (lambda x: jax.nn.gelu(x, approximate=False), lambda x: jax.nn.gelu(x, approximate=True)),
        "silu": (jax.nn.silu, jax.nn.gelu),
        "leaky": (lambda x: jax.nn.leaky_relu(x, 0.1), lambda x: jax.nn.leaky_relu(x, 0.2)),
        "softplus": (jax.nn.softplus, jax.nn.relu),
    }
    right, wrong = functions[name]

    def candidate(_: Any, x: Array, fault: str) -> Array:
        if fault == "no gradient":
            return jax.lax.stop_gradient(right(x))
        return wrong(x) if fault == "activation" else right(x)

    return Step(
        kind=name,
        port_kind=name.title(),
        reference=lambda _, x: right(x),
        candidate=candidate,
        faults=("activation", "no gradient"),
        shape=shape,
    )


def pool(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A pooling of 2 x 2."""
    width, height, _ = shape
    mode = draw.one_of("max", "mean")

    def reference(_: Any, x: Array) -> Array:
        if mode == "max":
            return torch_like.max_pool(x)
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))

    return Step(
        kind=f"{mode}pool",
        port_kind="Pool",
        reference=reference,
        candidate=lambda _, x, fault: flax_like.pool(
            x, mode if fault != "pooling" else ("mean" if mode == "max" else "max")
        ),
        faults=("pooling",),
        shape=(width, height // 2, height // 2),
    )


def squeeze(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A squeeze and excitation: channels are multiplied with what a small network makes of their means."""
    width = shape[0]

    def reference(weights: Any, x: Array) -> Array:
        inner = jax.nn.relu(torch_like.linear(weights["fc1"], x.mean((2, 3))))
        return x * jax.nn.sigmoid(torch_like.linear(weights["fc2"], inner))[:, :, None, None]

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        inner = flax_like.dense(weights["down"], x.mean((1, 2)))
        inner = jnp.tanh(inner) if fault == "activation" else jax.nn.relu(inner)
        gate = flax_like.dense(weights["up"], inner)
        gate = jax.nn.hard_sigmoid(gate) if fault == "gate" else jax.nn.sigmoid(gate)
        return x * (jax.lax.stop_gradient(gate) if fault == "no gradient" else gate)[:, None, None]

    return Step(
        kind="se",
        port_kind="SqueezeExcite",
        weights={"fc1": draw.linear(width, 4), "fc2": draw.linear(4, width)},
        ported=lambda weights: {"down": dense_weights(weights["fc1"]), "up": dense_weights(weights["fc2"])},
        reference=reference,
        candidate=candidate,
        faults=("activation", "gate", "no gradient"),
        shape=shape,
    )


def residual(draw: Draw, shape: tuple[int, ...]) -> Step:
    """A residual block of two convolutions with batch norms."""
    width = shape[0]
    norm = batch_norm(draw, shape)
    names = {"conv1": "Conv_0", "bn1": "Norm_0", "conv2": "Conv_1", "bn2": "Norm_1"}

    def reference(weights: Any, x: Array) -> Array:
        with jax.named_scope("conv1"):
            y = torch_like.conv(weights["conv1"], x)
        with jax.named_scope("bn1"):
            y = jax.nn.relu(norm.reference(weights["bn1"], y))
        with jax.named_scope("conv2"):
            y = torch_like.conv(weights["conv2"], y)
        with jax.named_scope("bn2"):
            y = norm.reference(weights["bn2"], y)
        return jax.nn.relu(x + y)

    def candidate(weights: Any, x: Array, fault: str) -> Array:
        with jax.named_scope("Conv_0"):
            y = flax_like.conv(weights["Conv_0"], x)
        with jax.named_scope("Norm_0"):
            y = norm.candidate(weights["Norm_0"], y, fault)
        y = jax.nn.relu(y)
        with jax.named_scope("Conv_1"):
            y = flax_like.conv(weights["Conv_1"], y, bias=fault != "no bias")
        with jax.named_scope("Norm_1"):
            y = norm.candidate(weights["Norm_1"], y, "")
        skip = jax.lax.stop_gradient(x) if fault == "no gradient" else x
        return y if fault == "no skip" else jax.nn.relu(skip + y)

    return Step(
        kind="block",
        port_kind="ResidualBlock",
        weights={
            "conv1": draw.conv(width, width),
            "bn1": draw.norm(width),
            "conv2": draw.conv(width, width),
            "bn2": draw.norm(width),
        },
        ported=lambda weights: {
            names[name]: (conv_weights if "conv" in name else norm_weights)(each) for name, each in weights.items()
        },
        reference=reference,
        candidate=candidate,
        faults=("epsilon", "no skip", "no gradient"),
        shape=shape,
    )


#: What makes the steps of a network of images; there are more convolutions than others.
STEPS = (conv, conv, batch_norm, group_norm, activation, pool, squeeze, residual)
