"""The healthy models of the held-out cases that faults are planted in, too."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from findings_bench import nets
from findings_bench.nets import Tree


def layers(sizes: dict[str, tuple[int, ...]], gain: float = 1.0) -> Tree:
    """Returns the parameters of layers of some shapes."""
    return {name: nets.layer(n, shape, gain) for n, (name, shape) in enumerate(sizes.items())}


def gated_unit(params: Tree, batch: Tree) -> Any:
    """Predicts tokens with RMS norms and gated units, as LLaMA does."""
    with jax.named_scope("embed"):
        x = params["embed"]["table"][batch["ids"]]
    for n in range(4):
        block = params[f"block{n}"]
        with jax.named_scope(f"block{n}"):
            with jax.named_scope("norm"):
                y = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * block["norm"]["scale"]
            gate = nets.named("silu", jax.nn.silu, nets.dense(block, "gate", y))
            with jax.named_scope("product"):
                y = gate * nets.dense(block, "up", y)
            y = nets.dense(block, "down", y)
            with jax.named_scope("add"):
                x = x + y
    return nets.cross_entropy(nets.dense(params, "head", x), batch["ids"])


def gated_unit_params() -> Tree:
    """Returns the parameters of `gated_unit`."""
    params: Tree = {
        "embed": {"table": 0.02 * jax.random.normal(nets.key(40), (50, 32))},
        "head": nets.layer(41, (32, 50), 0.1),
    }
    for n in range(4):
        gate, up = nets.layer(3 * n, (32, 64), 0.11), nets.layer(3 * n + 1, (32, 64), 0.11)
        down = nets.layer(3 * n + 2, (64, 32), 0.16)
        params[f"block{n}"] = {"norm": {"scale": jnp.ones(32)}, "gate": gate, "up": up, "down": down}
    return params


def ids(seed: int) -> Tree:
    """Returns sequences of tokens."""
    return {"ids": jax.random.randint(nets.key(seed), (4, 10), 0, 50)}


def dense_blocks(params: Tree, batch: Tree) -> Any:
    """Concatenates all earlier features, as DenseNet does."""
    x = batch["x"]
    for n in range(6):
        new = nets.named(f"relu{n}", jax.nn.relu, nets.conv(params, f"conv{n}", x))
        with jax.named_scope(f"join{n}"):
            x = jnp.concatenate([x, new], -1)
    with jax.named_scope("pool"):
        x = x.mean((1, 2))
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def dense_blocks_params() -> Tree:
    """Returns the parameters of `dense_blocks`."""
    params = {f"conv{n}": nets.layer(n, (3, 3, 3 + 4 * n, 4), math.sqrt(2)) for n in range(6)}
    return {**params, "head": nets.layer(9, (27, nets.CLASSES))}


def u_net(params: Tree, batch: Tree) -> Any:
    """Predicts noise at the input's resolution, by way of lower ones."""
    x = nets.named("silu0", jax.nn.silu, nets.conv(params, "in", batch["x"]))
    low = nets.named("silu1", jax.nn.silu, nets.conv(params, "down", x, 2))
    low = nets.named("silu2", jax.nn.silu, nets.conv(params, "middle", low))
    with jax.named_scope("upsample"):
        high = jnp.repeat(jnp.repeat(low, 2, 1), 2, 2)
    with jax.named_scope("join"):
        x = jnp.concatenate([x, high], -1)
    out = nets.conv(params, "out", nets.named("silu3", jax.nn.silu, nets.conv(params, "up", x)))
    with jax.named_scope("loss"):
        return jnp.square(out - batch["x"]).mean()


def u_net_params() -> Tree:
    """Returns the parameters of `u_net`."""
    sizes = {
        "in": (3, 3, 3, 8),
        "down": (3, 3, 8, 16),
        "middle": (3, 3, 16, 16),
        "up": (3, 3, 24, 8),
        "out": (3, 3, 8, 3),
    }
    params = layers(sizes, 1.4)
    return {**params, "out": jax.tree.map(jnp.zeros_like, params["out"])}


def experts(params: Tree, batch: Tree) -> Any:
    """Weights four experts by a softmax."""
    gates = nets.named("gates", jax.nn.softmax, nets.dense(params, "router", batch["x"]))
    outs = jnp.stack(
        [nets.named(f"act{n}", jnp.tanh, nets.dense(params, f"expert{n}", batch["x"])) for n in range(4)], 1
    )
    with jax.named_scope("mix"):
        x = jnp.einsum("ne,ned->nd", gates, outs)
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def experts_params() -> Tree:
    """Returns the parameters of `experts`."""
    return layers({"router": (16, 4), **{f"expert{n}": (16, 32) for n in range(4)}, "head": (32, nets.CLASSES)})


def policy(params: Tree, batch: Tree) -> Any:
    """Has a policy whose last layer is 100 times smaller than usual, and a value; both share two layers."""
    x = nets.named("tanh0", jnp.tanh, nets.dense(params, "dense0", batch["x"]))
    x = nets.named("tanh1", jnp.tanh, nets.dense(params, "dense1", x))
    value = nets.dense(params, "value", x)
    with jax.named_scope("value_loss"):
        error = jnp.square(value[:, 0] - batch["x"][:, 0]).mean()
    return nets.cross_entropy(nets.dense(params, "policy", x), batch["y"]) + error


def policy_params() -> Tree:
    """Returns the parameters of `policy`."""
    params = layers(
        {"dense0": (16, 32), "dense1": (32, 32), "value": (32, 1), "policy": (32, nets.CLASSES)}, math.sqrt(2)
    )
    return {**params, "policy": nets.layer(3, (32, nets.CLASSES), 0.01)}
