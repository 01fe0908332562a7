"""The zoo's models once more, in plain arithmetic: every activation named by hand, without scopes, every loop unrolled.

A model here is a function of its variables, its batch and a *record*, called on every activation with all names
that a dump has for it, and returns what to go on with. That is how activations get out, and how something can be added
to each of them: the gradient of the loss with respect to what is added is the activation's gradient.

The formulas are others than the models' wherever there are others: convolutions are matrix products, pooling is a
choice among nine shifted images, softmax and its logarithm are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Tree: TypeAlias = "Mapping[str, Any]"
Record: TypeAlias = Callable[..., Array]
Explicit: TypeAlias = Callable[[Any, Any, Record], Array]

#: What runs once need not run fast.
COMPILED_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def tensors_of(explicit: Explicit, variables: Any, batch: Any) -> dict[str, np.ndarray]:
    """Everything the explicit model computes, by dump key: activations, their gradients, and those of parameters.

    Args:
        explicit: The model.
        variables: Its variables.
        batch: Its batch.
    """

    def shapes(variables: Any, batch: Any) -> dict[str, Array]:
        recorded: dict[str, Array] = {}

        def record(value: Array, *names: str) -> Array:
            assert recorded.keys().isdisjoint(names), names
            recorded.update(dict.fromkeys(names, value))
            return value

        explicit(variables, batch, record)
        return recorded

    def perturbed(added: Mapping[str, Array], variables: Any, batch: Any) -> tuple[Array, dict[str, Array]]:
        recorded: dict[str, Array] = {}

        def record(value: Array, *names: str) -> Array:
            for name in names:
                value = recorded[name] = value + added[name]
            return value

        return explicit(variables, batch, record), recorded

    with jax.numpy_rank_promotion("allow"):
        shape_of = jax.eval_shape(shapes, variables, batch)
        zeros = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in shape_of.items()}
        differentiate = jax.value_and_grad(perturbed, argnums=(0, 1), has_aux=True)
        differentiate = jax.jit(differentiate, compiler_options=COMPILED_QUICKLY)
        (_, activations), (gradients, param_gradients) = differentiate(zeros, variables, batch)
    return {
        **{f"activation/{name}": np.asarray(value) for name, value in activations.items()},
        **{f"activation_grad/{name}": np.asarray(value) for name, value in gradients.items()},
        **named_params(param_gradients, "param_grad"),
    }


def named_params(variables: Any, family: str) -> dict[str, np.ndarray]:
    """Parameters, or their gradients, by dump key; other collections are left out."""
    params = variables.get("params", variables)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {f"{family}/{'/'.join(part.key for part in path)}": np.asarray(leaf) for path, leaf in leaves}


def linear_regression(variables: Tree, batch: Tree, record: Record) -> Array:
    line = record(variables["bias"] + batch["x"] * variables["weight"], "line")
    return record(jnp.vdot(line - batch["y"], line - batch["y"]) / line.size, "loss")


def mlp(variables: Tree, batch: Tree, record: Record) -> Array:
    x = batch["point"]
    for number in (1, 2):
        x = record(affine(variables[f"dense{number}"], x), f"dense{number}")
        x = record(positive(x), f"relu{number}")
    logits = record(affine(variables["dense3"], x), "dense3")
    return record(cross_entropy(logits, batch["spiral"]), "loss")


def transformer(variables: Tree, batch: Tree, record: Record) -> Array:
    params = variables["params"]
    token = record(jnp.take(params["embed"]["token"]["embedding"], batch["tokens"], axis=0), "embed/token")
    position = record(params["embed"]["position"]["embedding"][None, : batch["tokens"].shape[1]], "embed/position")
    x = record(token + jnp.broadcast_to(position, token.shape), "embed/add", "embed")
    for number in range(params["block"]["norm1"]["scale"].shape[0]):
        one = jax.tree.map(lambda stacked, number=number: stacked[number], params["block"])
        x = transformer_block(one, x, record, f"block[{number}]")
    x = record(layer_norm(params["norm"], x), "norm")
    logits = record(x @ params["head"]["kernel"], "head")
    flat = logits.reshape(-1, logits.shape[-1])
    return record(cross_entropy(flat, batch["targets"].reshape(-1)), "loss")


def transformer_block(params: Tree, x: Array, record: Record, at: str) -> Array:
    normal = record(layer_norm(params["norm1"], x), f"{at}/norm1")
    x = record(x + attention(params["attn"], normal, record, f"{at}/attn"), f"{at}/add1")
    normal = record(layer_norm(params["norm2"], x), f"{at}/norm2")
    up = record(normal @ params["mlp"]["up"]["kernel"], f"{at}/mlp/up")
    bent = record(0.5 * up * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3))), f"{at}/mlp/gelu")
    down = record(bent @ params["mlp"]["down"]["kernel"], f"{at}/mlp/down", f"{at}/mlp")
    return record(x + down, f"{at}/add2", at)


def attention(params: Tree, x: Array, record: Record, at: str) -> Array:
    """Letters as in the model; here each projection is one matrix product."""
    n, t, d = x.shape
    _, h, k = params["query"]["kernel"].shape

    def project(name: str) -> Array:
        return record((x @ params[name]["kernel"].reshape(d, h * k)).reshape(n, t, h, k), f"{at}/{name}")

    query, key, value = project("query"), project("key"), project("value")
    scores = record(query.transpose(0, 2, 1, 3) @ key.transpose(0, 2, 3, 1) * k**-0.5, f"{at}/scores")
    ahead = np.triu(np.ones((t, t), bool), 1)[None, None]
    weights = jnp.where(ahead, 0, jnp.exp(scores - jnp.where(ahead, -np.inf, scores).max(axis=-1, keepdims=True)))
    weights = record(weights / weights.sum(axis=-1, keepdims=True), f"{at}/softmax")
    mixed = record((weights @ value.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3), f"{at}/mix")
    return record(mixed.reshape(n, t, h * k) @ params["out"]["kernel"].reshape(h * k, d), f"{at}/out", at)


def resnet(variables: Tree, batch: Tree, record: Record) -> Array:
    """A residual network in training mode, of the depth that its parameters say."""
    params = variables["params"]
    x = conv_and_norm(params["stem"], batch["image"], record, "stem/conv", stride=2)
    x = record(positive(x), "stem/relu")
    x = record(max_pool(x), "stem/pool", "stem")
    for block in sorted(name for name in params if name.startswith("stage")):
        halving = block.endswith("_block1") and not block.startswith("stage1")
        x = residual(params[block], x, record, block, stride=2 if halving else 1)
    x = record(x.mean(axis=(1, 2)), "pool")
    return record(cross_entropy(record(affine(params["head"], x), "head"), batch["label"]), "loss")


def residual(params: Tree, x: Array, record: Record, at: str, stride: int) -> Array:
    shortcut = x
    last = 3 if "conv3" in params else 2
    strided = last - 1  # a bottleneck halves the image in its 3x3 convolution, a basic block in its first
    for number in range(1, last + 1):
        x = conv_and_norm(params, x, record, f"{at}/conv{number}", stride if number == strided else 1)
        if number < last:
            x = record(positive(x), f"{at}/relu{number}")
    if "proj_conv" in params:
        shortcut = conv_and_norm(params, shortcut, record, f"{at}/proj_conv", stride)
    x = record(x + shortcut, f"{at}/add")
    return record(positive(x), f"{at}/relu{last}", at)


def conv_and_norm(params: Tree, x: Array, record: Record, path: str, stride: int) -> Array:
    """The convolution at `path`, `stem/conv`, and the norm behind it, `stem/bn`."""
    at, name = path.split("/")
    norm = name.replace("conv", "bn")
    x = record(convolve(params[name]["kernel"], x, stride), path)
    centred = x - x.mean(axis=(0, 1, 2), keepdims=True)
    normal = centred / jnp.sqrt((centred**2).mean(axis=(0, 1, 2), keepdims=True) + 1e-5)
    return record(normal * params[norm]["scale"] + params[norm]["bias"], f"{at}/{norm}")


def convolve(kernel: Array, x: Array, stride: int) -> Array:
    """One matrix product: what a window sees laid out as a vector, the kernel as a matrix."""
    return jnp.concatenate(shifted(x, kernel.shape[0], stride, 0.0), axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def max_pool(x: Array) -> Array:
    """The largest of nine; of several that are equally large the first, which alone gets the gradient."""
    views = jnp.stack(shifted(x, 3, 2, -np.inf))
    return jnp.take_along_axis(views, views.argmax(axis=0)[None], axis=0)[0]


def shifted(x: Array, window: int, stride: int, padding: float) -> list[Array]:
    """What each place of a square window sees of an image, row by row."""
    pad, out = window // 2, -(-x.shape[1] // stride)
    x = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=padding)
    spans = [slice(start, start + stride * (out - 1) + 1, stride) for start in range(window)]
    return [x[:, rows, columns] for rows in spans for columns in spans]


def affine(params: Tree, x: Array) -> Array:
    return x @ params["kernel"] + params["bias"]


def positive(x: Array) -> Array:
    return jnp.where(x > 0, x, 0)


def layer_norm(params: Tree, x: Array) -> Array:
    mean, deviation = x.mean(axis=-1, keepdims=True), jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-5)
    return params["scale"] * ((x - mean) / deviation) + params["bias"]


def cross_entropy(logits: Array, label: Array) -> Array:
    """Of logits [N, classes]."""
    chosen = (logits * jnp.eye(logits.shape[1], dtype=logits.dtype)[label]).sum(axis=1)
    largest = logits.max(axis=1, keepdims=True)
    return (jnp.log(jnp.exp(logits - largest).sum(axis=1)) + largest[:, 0] - chosen).mean()
