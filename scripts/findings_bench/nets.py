"""The small networks that the cases vary: chains, residual nets, convolutions, recurrence and attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Activation = Callable[[Array], Array]
Tree = dict[str, Any]

CLASSES = 4


def key(number: int = 0) -> Array:
    """Returns a key of the random generator."""
    return jax.random.key(number)


def kernel(number: int, shape: tuple[int, ...], gain: float = 1.0) -> Array:
    """Returns normal weights of deviation gain / sqrt(fan in)."""
    return gain / math.sqrt(math.prod(shape[:-1])) * jax.random.normal(key(number), shape)


def layer(number: int, shape: tuple[int, ...], gain: float = 1.0) -> Tree:
    """Returns a kernel and a bias of zeros."""
    return {"kernel": kernel(number, shape, gain), "bias": jnp.zeros(shape[-1])}


def dense(params: Tree, name: str, x: Array) -> Array:
    """Returns x W + b, under the layer's name."""
    with jax.named_scope(name):
        return x @ params[name]["kernel"].astype(x.dtype) + params[name]["bias"].astype(x.dtype)


def conv(params: Tree, name: str, x: Array, stride: int = 1) -> Array:
    """Returns the convolution of [N, H, W, C] plus a bias."""
    with jax.named_scope(name):
        kernel = params[name]["kernel"].astype(x.dtype)
        out = lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return out + params[name]["bias"].astype(x.dtype)


def named(name: str, function: Activation, x: Array) -> Array:
    """Applies a function under a layer's name."""
    with jax.named_scope(name):
        return function(x)


def norm(params: Tree, name: str, x: Array) -> Array:
    """Returns the layer normalisation over the last axis."""
    with jax.named_scope(name):
        centred = x - x.mean(-1, keepdims=True)
        normal = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return normal * params[name]["scale"] + params[name]["bias"]


def norm_params(width: int) -> Tree:
    """Returns scale 1 and bias 0."""
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Returns the mean negative log-likelihood, under the name loss."""
    with jax.named_scope("loss"):
        log_likelihoods = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(log_likelihoods, labels[..., None], axis=-1).mean()


def points(size: int = 32, features: int = 16, seed: int = 1) -> Tree:
    """Returns normal inputs x, and labels y that are a function of them."""
    x = jax.random.normal(key(seed), (size, features))
    return {"x": x, "y": jnp.argmax(x[:, :CLASSES], axis=-1)}


def images(size: int = 8, side: int = 8, channels: int = 3, seed: int = 1) -> Tree:
    """Returns normal images and labels."""
    x = jax.random.normal(key(seed), (size, side, side, channels))
    return {"x": x, "y": jnp.argmax(x.mean(1)[:, :CLASSES, 0], axis=-1)}


def chain(depth: int, width: int = 32, gain: float = math.sqrt(2), features: int = 16) -> Tree:
    """Returns the parameters of `run_chain`: dense0 ... and head."""
    params = {f"dense{n}": layer(n, (features if n == 0 else width, width), gain) for n in range(depth)}
    return {**params, "head": layer(99, (width, CLASSES))}


def run_chain(params: Tree, x: Array, activation: Activation = jax.nn.relu) -> Array:
    """Returns logits: dense and activation in turn, then the head."""
    for n in range(sum(name.startswith("dense") for name in params)):
        x = named(f"act{n}", activation, dense(params, f"dense{n}", x))
    return dense(params, "head", x)


def chain_loss(activation: Activation = jax.nn.relu) -> Callable[[Tree, Tree], Array]:
    """Returns the loss of `run_chain`."""
    return lambda params, batch: cross_entropy(run_chain(params, batch["x"], activation), batch["y"])


def quantised(x: Array) -> Array:
    """Returns x in 15 steps up to its largest magnitude."""
    scale = jnp.abs(x).max() / 7
    return jnp.round(x / scale) * scale


def chain_loss_of(seen: Activation) -> Callable[[Tree, Tree], Array]:
    """Returns the loss of `run_chain` with what a function makes of the kernels in front of the head."""

    def loss(params: Tree, batch: Tree) -> Array:
        x = batch["x"]
        for name in (name for name in params if name != "head"):
            with jax.named_scope(name):
                x = jax.nn.relu(x @ seen(params[name]["kernel"]) + params[name]["bias"])
        return cross_entropy(dense(params, "head", x), batch["y"])

    return loss


def residual(depth: int, width: int = 32, gain: float = math.sqrt(2), *, normed: bool = False) -> Tree:
    """Returns the parameters of `run_residual`."""
    params: Tree = {"stem": layer(98, (16, width))}
    for n in range(depth):
        params[f"block{n}"] = {"up": layer(2 * n, (width, width), gain), "down": layer(2 * n + 1, (width, width), gain)}
        if normed:
            params[f"block{n}"]["norm"] = norm_params(width)
    return {**params, "head": layer(99, (width, CLASSES))}


def run_residual(params: Tree, x: Array) -> Array:
    """Returns logits of x + down(relu(up(x))), repeated."""
    x = dense(params, "stem", x)
    for n in range(sum(name.startswith("block") for name in params)):
        block = params[f"block{n}"]
        with jax.named_scope(f"block{n}"):
            y = norm(block, "norm", x) if "norm" in block else x
            y = dense(block, "down", named("relu", jax.nn.relu, dense(block, "up", y)))
            with jax.named_scope("add"):
                x = x + y
    return dense(params, "head", x)


def residual_loss(params: Tree, batch: Tree) -> Array:
    """Returns the loss of `run_residual`."""
    return cross_entropy(run_residual(params, batch["x"]), batch["y"])


def convnet(depth: int, channels: int = 8, gain: float = math.sqrt(2)) -> Tree:
    """Returns the parameters of `run_convnet`."""
    params = {f"conv{n}": layer(n, (3, 3, 3 if n == 0 else channels, channels), gain) for n in range(depth)}
    return {**params, "head": layer(99, (channels, CLASSES))}


def run_convnet(params: Tree, x: Array, activation: Activation = jax.nn.relu) -> Array:
    """Returns logits of a chain of convolutions."""
    for n in range(sum(name.startswith("conv") for name in params)):
        x = named(f"act{n}", activation, conv(params, f"conv{n}", x))
    with jax.named_scope("pool"):
        x = x.mean((1, 2))
    return dense(params, "head", x)


def convnet_loss(params: Tree, batch: Tree) -> Array:
    """Returns the loss of `run_convnet`."""
    return cross_entropy(run_convnet(params, batch["x"]), batch["y"])


def recurrent(width: int = 16, gain: float = 1.0, features: int = 4) -> Tree:
    """Returns the parameters of `recurrent_loss`."""
    hidden = gain * jnp.linalg.qr(jax.random.normal(key(5), (width, width)))[0]
    cell = {"input": layer(0, (features, width)), "hidden": {"kernel": hidden, "bias": jnp.zeros(width)}}
    return {"cell": cell, "head": layer(99, (width, CLASSES))}


def recurrent_loss(activation: Activation) -> Callable[[Tree, Tree], Array]:
    """Returns the loss of the last state of a plain recurrence."""

    def loss(params: Tree, batch: Tree) -> Array:
        def step(state: Array, x: Array) -> tuple[Array, None]:
            cell = params["cell"]
            return named("act", activation, dense(cell, "input", x) + dense(cell, "hidden", state)), None

        x = jnp.moveaxis(batch["x"], 1, 0)
        with jax.named_scope("cell"):
            state, _ = lax.scan(step, jnp.zeros((x.shape[1], params["cell"]["hidden"]["bias"].shape[0])), x)
        return cross_entropy(dense(params, "head", state), batch["y"])

    return loss


def sequences(length: int, size: int = 8, features: int = 4) -> Tree:
    """Returns sequences and labels."""
    x = jax.random.normal(key(3), (size, length, features))
    return {"x": x, "y": jnp.argmax(x[:, -1], axis=-1)}


def attention(width: int = 64) -> Tree:
    """Returns the parameters of `attention_loss`."""
    names = ("query", "key", "value", "out")
    params: Tree = {name: layer(n, (width, width)) for n, name in enumerate(names)}
    return {"stem": layer(7, (16, width)), "norm": norm_params(width), **params, "head": layer(99, (width, CLASSES))}


def attention_loss(
    scaling: float | None = None, mask: Callable[[Array], Array] = lambda scores: scores
) -> Callable[[Tree, Tree], Array]:
    """Returns the loss of one head of attention; scores are multiplied by `scaling`, 1 / sqrt(width) where None."""

    def loss(params: Tree, batch: Tree) -> Array:
        x = norm(params, "norm", dense(params, "stem", batch["x"]))
        query, keys, value = (dense(params, name, x) for name in ("query", "key", "value"))
        with jax.named_scope("scores"):
            scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
            scores = mask(jnp.einsum("ntd,nsd->nts", query, keys) * scale)
        weights = named("softmax", jax.nn.softmax, scores)
        with jax.named_scope("mix"):
            mixed = jnp.einsum("nts,nsd->ntd", weights, value)
        with jax.named_scope("pool"):
            pooled = (x + dense(params, "out", mixed)).mean(1)
        return cross_entropy(dense(params, "head", pooled), batch["y"])

    return loss


def tokens(size: int = 4, length: int = 12) -> Tree:
    """Returns sequences of 16 features and labels."""
    x = jax.random.normal(key(4), (size, length, 16))
    return {"x": x, "y": jnp.argmax(x[:, 0, :CLASSES], axis=-1)}


def cast(tree: Any, dtype: Any) -> Any:
    """Returns a tree with its floating-point arrays in a dtype."""

    def one(leaf: Any) -> Any:
        return leaf.astype(dtype) if isinstance(leaf, Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree)
