"""A multilayer perceptron: three dense layers that classify the points of two spirals.

    point    [N,  2]
    dense1   [N, 32]    then relu1
    dense2   [N, 32]    then relu2
    dense3   [N,  2]    one logit per spiral

A *dense* layer multiplies by its kernel and adds its bias. Without the ReLUs between them, the three layers would be
equivalent to one: the product of the kernels is a kernel, and no straight line separates two spirals.

Variables are a plain pytree, `{"dense1": {"kernel", "bias"}, ...}`, nested by the names of the `jax.named_scope`s in
which they are used.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
from jax import Array

Layer = dict[str, Array]

WIDTHS = (2, 32, 32, 2)  # features of the input, of the two hidden layers, and of the output
ITERATIONS = 1.5  # revolutions of a spiral around the origin
NOISE = 0.02  # standard deviation of the points around their spiral, whose radius grows to 1


def init(key: Array) -> dict[str, Layer]:
    """Returns kernels by He's rule, which preserves the scale of activations through ReLUs, and zero biases."""
    keys = jax.random.split(key, len(WIDTHS) - 1)
    layers = zip(keys, itertools.pairwise(WIDTHS), strict=True)
    return {f"dense{number}": dense_init(layer_key, shape) for number, (layer_key, shape) in enumerate(layers, 1)}


def dense_init(key: Array, shape: tuple[int, int]) -> Layer:
    """Returns a kernel [features in, features out] and a bias [features out]."""
    features_in, features_out = shape
    return {"kernel": math.sqrt(2 / features_in) * jax.random.normal(key, shape), "bias": jnp.zeros(features_out)}


def batch(key: Array, size: int = 64) -> dict[str, Array]:
    """Returns `size` points, each with the number of its spiral, 0 or 1."""
    radius_key, spiral_key, noise_key = jax.random.split(key, 3)
    spiral = jax.random.randint(spiral_key, (size,), 0, 2, jnp.int32)
    radius = jax.random.uniform(radius_key, (size,))
    angle = 2 * math.pi * ITERATIONS * radius + math.pi * spiral.astype(
        radius.dtype
    )  # the second spiral is rotated by half a circle
    point = radius[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)  # [N, 2]
    return {"point": point + NOISE * jax.random.normal(noise_key, point.shape), "spiral": spiral}


def loss(variables: dict[str, Layer], batch: dict[str, Array]) -> Array:
    """Returns the mean cross-entropy of the true spirals."""
    logits = forward(variables, batch)
    with jax.named_scope("loss"):
        log_likelihoods = jax.nn.log_softmax(logits)  # [N, 2]
        return -jnp.take_along_axis(log_likelihoods, batch["spiral"][:, None], axis=1).mean()


def forward(variables: dict[str, Layer], batch: dict[str, Array]) -> Array:
    """Returns the logits, [N, 2]."""
    x = dense("dense1", variables, batch["point"])
    with jax.named_scope("relu1"):
        x = jax.nn.relu(x)
    x = dense("dense2", variables, x)
    with jax.named_scope("relu2"):
        x = jax.nn.relu(x)
    return dense("dense3", variables, x)


def dense(name: str, variables: dict[str, Layer], x: Array) -> Array:
    """Maps [N, features in] to [N, features out], in the kernel's dtype."""
    layer = variables[name]
    with jax.named_scope(name):
        return x.astype(layer["kernel"].dtype) @ layer["kernel"] + layer["bias"][None, :]
