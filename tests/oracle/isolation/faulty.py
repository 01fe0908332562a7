"""A small network with faults to plant, one at a time, for comparisons to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import Array

import gradscope as gs
from tests.support.data import drawn, evenly, filled

WIDTH: Final = 8
HEADS: Final = 2
POSITIONS: Final = 6
DEPTH: Final = 2

Tree = dict[str, Any]


def variables() -> Tree:
    """Parameters and the statistics of a batch that was."""
    stacked = {
        name: drawn(number, DEPTH, WIDTH, WIDTH, scale=0.4)
        for number, name in enumerate(("query", "key", "value", "out"), 2)
    }
    params = {
        "attention": stacked,
        "up": {"w": drawn(6, WIDTH, WIDTH, scale=0.3), "b": filled(0.1, WIDTH)},
        "down": {"w": drawn(7, WIDTH, WIDTH, scale=0.3), "b": filled(-0.1, WIDTH)},
        "head": {"w": drawn(8, WIDTH, 3)},
    }
    return {"params": params, "batch_stats": {"mean": evenly(-0.2, 0.2, WIDTH)}}


def batch() -> Tree:
    """Two examples."""
    return {"x": drawn(1, 2, POSITIONS, WIDTH)}


def planted(fault: str) -> Tree:
    """The variables with a fault in them, for faults of variables."""
    tree = variables()
    params = tree["params"]
    if fault == "swapped weights":
        params["up"]["w"], params["down"]["w"] = params["down"]["w"], params["up"]["w"]
    if fault == "transposed kernel":
        params["down"]["w"] = params["down"]["w"].T
    if fault == "permuted scan layers":
        params["attention"] = {name: array[::-1] for name, array in params["attention"].items()}
    if fault == "stale batch statistic":
        tree["batch_stats"]["mean"] = jnp.zeros(WIDTH)
    return tree


def capture(fault: str = "") -> gs.Dump:
    """What the network does with a fault planted in it, or with none."""
    return gs.capture(with_fault(fault), planted(fault), batch())


def with_fault(fault: str) -> Callable[[Tree, Tree], Array]:
    """The loss with a fault planted in it, or with none."""
    return lambda tree, batch: _loss(tree, batch, fault)


def _loss(tree: Tree, batch: Tree, fault: str) -> Array:
    params, x = tree["params"], batch["x"]
    with jax.named_scope("norm"):
        x = _norm(x, 1e-2 if fault == "changed epsilon" else 1e-5)
    for layer in range(DEPTH):
        with jax.named_scope(f"attention[{layer}]"):
            x = _attention({name: stack[layer] for name, stack in params["attention"].items()}, x, layer, fault)
    with jax.named_scope("up"):
        x = jnp.einsum("npd,de->npe", x, params["up"]["w"])
        x = x if fault == "missing bias" else x + params["up"]["b"][None, None]
    with jax.named_scope("gate"):
        x = _wrongly_gated(x) if fault == "wrong custom VJP" else _gated(x)
    with jax.named_scope("drop"):
        if fault == "dropout left on":
            x = jnp.where(jax.random.bernoulli(jax.random.key(7), 0.9, x.shape), x / 0.9, 0.0)
        else:
            x = x * 1.0
    with jax.named_scope("down"):
        x = _product(x, params["down"]["w"], fault) + params["down"]["b"][None, None]
    with jax.named_scope("centre"):
        x = x - tree["batch_stats"]["mean"][None, None]
    with jax.named_scope("left"):
        left = jnp.tanh(x)
    with jax.named_scope("right"):
        right = jnp.sin(x)
    with jax.named_scope("stopped"):
        right = jax.lax.stop_gradient(right) if fault == "stop_gradient" else right * 1.0
    with jax.named_scope("sum"):
        x = left + right
    with jax.named_scope("head"):
        x = jnp.einsum("npd,de->npe", x, params["head"]["w"])
    with jax.named_scope("loss"):
        return jnp.square(x).mean()


def _norm(x: Array, epsilon: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + epsilon)


def _attention(params: Tree, x: Array, layer: int, fault: str) -> Array:
    query, key, value = (_heads(x, params[name]) for name in ("query", "key", "value"))
    if fault == "sign error in a head" and layer == 1:
        query = query * jnp.array([1.0, -1.0])[None, None, :, None]
    with jax.named_scope("scores"):
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, key)
        diagonal = 1 if fault == "off-by-one mask" and layer == 1 else 0
        mask = jnp.tril(jnp.ones((POSITIONS, POSITIONS), bool), diagonal)
        scores = jax.nn.softmax(jnp.where(mask[None, None], scores, -1e9))
    with jax.named_scope("mix"):
        mixed = jnp.einsum("nhqk,nkhd->nqhd", scores, value).reshape(x.shape)
    with jax.named_scope("out"):
        return x + jnp.einsum("npd,de->npe", mixed, params["out"])


def _heads(x: Array, kernel: Array) -> Array:
    return jnp.einsum("npd,de->npe", x, kernel).reshape(*x.shape[:2], HEADS, WIDTH // HEADS)


def _product(x: Array, w: Array, fault: str) -> Array:
    if fault == "bf16 accumulation":
        return jnp.einsum("npd,de->npe", x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)).astype(jnp.float32)
    return jnp.einsum("npd,de->npe", x, w)


@jax.custom_vjp
def _gated(x: Array) -> Array:
    return x * jax.nn.sigmoid(x)


def _gate_forward(x: Array) -> tuple[Array, Array]:
    return x * jax.nn.sigmoid(x), x


def _gate_backward(x: Array, cotangent: Array) -> tuple[Array]:
    gate = jax.nn.sigmoid(x)
    return (cotangent * (gate + x * gate * (1 - gate)),)


_gated.defvjp(_gate_forward, _gate_backward)


@jax.custom_vjp
def _wrongly_gated(x: Array) -> Array:
    return x * jax.nn.sigmoid(x)


def _gate_backward_without_second_term(x: Array, cotangent: Array) -> tuple[Array]:
    return (cotangent * jax.nn.sigmoid(x),)


_wrongly_gated.defvjp(_gate_forward, _gate_backward_without_second_term)
