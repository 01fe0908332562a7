"""Healthy models on which no threshold was set."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from findings_bench import nets
from findings_bench.cases import Healthy, Run
from findings_bench.healthy_plain import prepared
from findings_bench.held_out_models import (
    dense_blocks,
    dense_blocks_params,
    experts,
    experts_params,
    gated_unit,
    gated_unit_params,
    ids,
    layers,
    policy,
    policy_params,
    u_net,
    u_net_params,
)  # fmt: skip
from findings_bench.nets import Tree


def _points(seed: int) -> Tree:
    return nets.points(24, seed=seed)


def _periodic(params: Tree, batch: Tree) -> Any:
    """Represents a function by sines of 30 times their operand, as SIREN does."""
    x = batch["x"][:, :2]
    for name in ("first", "second", "third"):
        x = nets.named(f"{name}_sine", lambda x: jnp.sin(30 * x), nets.dense(params, name, x))
    out = nets.dense(params, "out", x)
    with jax.named_scope("loss"):
        return jnp.square(out[:, 0] - jnp.sin(batch["x"][:, 0])).mean()


def _periodic_params() -> Tree:
    params = layers({"first": (2, 32), "second": (32, 32), "third": (32, 32), "out": (32, 1)})
    bounds = {"first": 1 / 2, "second": math.sqrt(6 / 32) / 30, "third": math.sqrt(6 / 32) / 30, "out": 0.07}
    for n, (name, bound) in enumerate(bounds.items()):
        shape = params[name]["kernel"].shape
        params[name]["kernel"] = jax.random.uniform(nets.key(n), shape, minval=-bound, maxval=bound)
    return params


def _critic(params: Tree, batch: Tree) -> Any:
    """Regresses a value on that of a target network, behind stop_gradient, that is an input."""

    def value(params: Tree, x: Any) -> Any:
        x = nets.named("relu", jax.nn.relu, nets.dense(params, "dense0", x))
        return nets.dense(params, "value", x)[:, 0]

    with jax.named_scope("target"):
        target = lax.stop_gradient(batch["reward"] + 0.99 * value(batch["target"], batch["x"]))
    with jax.named_scope("online"):
        predicted = value(params, batch["x"])
    with jax.named_scope("loss"):
        return jnp.square(predicted - target).mean()


def _critic_params(seed: int = 0) -> Tree:
    return {"dense0": nets.layer(seed, (16, 32), math.sqrt(2)), "value": nets.layer(seed + 1, (32, 1))}


def _transition(seed: int) -> Tree:
    return {"x": _points(seed)["x"], "reward": jnp.ones(24), "target": _critic_params(7)}


def _quantised(params: Tree, batch: Tree) -> Any:
    """Encodes to the nearest of eight codes with a straight-through gradient."""
    code = nets.dense(params, "encoder", batch["x"])
    table = params["codes"]["table"]
    with jax.named_scope("quantise"):
        nearest = jnp.argmin(jnp.square(code[:, None] - table[None]).sum(-1), -1)
        chosen = table[nearest]
        through = code + lax.stop_gradient(chosen - code)
    out = nets.dense(params, "decoder", through)
    with jax.named_scope("loss"):
        commitment = (
            jnp.square(lax.stop_gradient(chosen) - code).mean() + jnp.square(chosen - lax.stop_gradient(code)).mean()
        )
        return jnp.square(out - batch["x"]).mean() + commitment


def _quantised_params() -> Tree:
    return {
        **layers({"encoder": (16, 4), "decoder": (4, 16)}),
        "codes": {"table": jax.random.normal(nets.key(9), (8, 4))},
    }


def _adapter(params: Tree, batch: Tree) -> Any:
    """Adds a product of two narrow kernels, the second of them zero at first, to a fixed one, as LoRA does."""
    x = batch["x"]
    for n in range(3):
        with jax.named_scope(f"layer{n}"):
            with jax.named_scope("base"):
                base = x @ nets.kernel(n, (16, 16))
            low = nets.dense(params[f"layer{n}"], "down", x)
            high = nets.dense(params[f"layer{n}"], "up", low)
            with jax.named_scope("add"):
                x = jnp.tanh(base + high)
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _adapter_params() -> Tree:
    params: Tree = {"head": nets.layer(20, (16, nets.CLASSES))}
    for n in range(3):
        up = {"kernel": jnp.zeros((2, 16)), "bias": jnp.zeros(16)}
        params[f"layer{n}"] = {"down": nets.layer(30 + n, (16, 2)), "up": up}
    return params


def _binary(params: Tree, batch: Tree) -> Any:
    """Classifies with a sigmoid and binary cross-entropy, inputs of which are all padding in half of the positions."""
    with jax.named_scope("embed"):
        x = params["embed"]["table"][batch["ids"]]
    with jax.named_scope("pool"):
        mask = (batch["ids"] > 0)[..., None]
        x = (x * mask).sum(1) / jnp.maximum(mask.sum(1), 1)
    x = nets.named("gelu", jax.nn.gelu, nets.dense(params, "dense0", x))
    probability = nets.named("sigmoid", jax.nn.sigmoid, nets.dense(params, "head", x)[:, 0])
    with jax.named_scope("loss"):
        label = (batch["ids"][:, 0] % 2).astype(x.dtype)
        return -(label * jnp.log(probability + 1e-6) + (1 - label) * jnp.log(1 - probability + 1e-6)).mean()


def _padded(seed: int) -> Tree:
    ids = jax.random.randint(nets.key(seed), (16, 10), 1, 20)
    return {"ids": ids.at[:, 5:].set(0)}


def _binary_params() -> Tree:
    return {
        "embed": {"table": 0.05 * jax.random.normal(nets.key(3), (20, 16))},
        **layers({"dense0": (16, 32), "head": (32, 1)}),
    }


def _post_norm(params: Tree, batch: Tree) -> Any:
    x = nets.dense(params, "stem", batch["x"])
    for n in range(10):
        block = params[f"block{n}"]
        with jax.named_scope(f"block{n}"):
            y = nets.dense(block, "down", nets.named("gelu", jax.nn.gelu, nets.dense(block, "up", x)))
            with jax.named_scope("add"):
                x = x + y
            x = nets.norm(block, "norm", x)
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _self_normalising(params: Tree, batch: Tree) -> Any:
    return nets.cross_entropy(nets.run_chain(params, batch["x"], jax.nn.selu), batch["y"])


def _solver(params: Tree, batch: Tree) -> Any:
    """Integrates a vector field by 20 steps."""

    def step(x: Any, _: Any) -> tuple[Any, None]:
        return x + 0.05 * nets.dense(
            params, "field2", nets.named("tanh", jnp.tanh, nets.dense(params, "field1", x))
        ), None

    with jax.named_scope("solve"):
        x, _ = lax.scan(step, batch["x"], None, length=20)
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _normalised_input(params: Tree, batch: Tree) -> Any:
    with jax.named_scope("rescale"):
        x = (batch["x"] * 60 + 128) / 255
    return nets.cross_entropy(nets.run_convnet(params, x), batch["y"])


def _funnel() -> Tree:
    widths = itertools.pairwise((16, 256, 64, 16, 4, 16, 64, 256))
    params = {f"dense{n}": nets.layer(n, shape, math.sqrt(2)) for n, shape in enumerate(widths)}
    return {**params, "head": nets.layer(99, (256, nets.CLASSES))}


def _couplings(params: Tree, batch: Tree) -> Any:
    """Returns the negative log likelihood of affine couplings, as RealNVP has them."""
    x, volume = batch["x"], 0.0
    for name, coupling in params.items():
        with jax.named_scope(name):
            kept, moved = jnp.split(x, 2, axis=-1)
            hidden = jnp.tanh(kept @ coupling["inner"]["kernel"] + coupling["inner"]["bias"])
            scale, shift = jnp.split(hidden @ coupling["outer"]["kernel"] + coupling["outer"]["bias"], 2, axis=-1)
            scale = jnp.tanh(scale)
            x, volume = jnp.concatenate([moved * jnp.exp(scale) + shift, kept], axis=-1), volume + scale.sum(-1)
    with jax.named_scope("loss"):
        return (jnp.square(x).sum(-1) / 2 - volume).mean()


def _couplings_params() -> Tree:
    return {f"coupling{n}": {"inner": nets.layer(n, (8, 32)), "outer": nets.layer(n, (32, 16), 0.0)} for n in range(3)}


def _branches(params: Tree, batch: Tree) -> Any:
    """Classifies by residual branches that begin at zero, each of one scope with all its layers."""
    x = nets.dense(params, "stem", batch["x"])
    for n in range(4):
        with jax.named_scope(f"block{n}"):
            block = params[f"block{n}"]
            x = x + jax.nn.gelu(x @ block["inner"]["kernel"] + block["inner"]["bias"]) @ block["outer"]
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _branches_params() -> Tree:
    blocks = {f"block{n}": {"inner": nets.layer(n, (32, 32)), "outer": jnp.zeros((32, 32))} for n in range(4)}
    return {**layers({"stem": (16, 32), "head": (32, nets.CLASSES)}), **blocks}


def _frozen(params: Tree, batch: Tree) -> Any:
    """Classifies by what a frozen trunk makes of the inputs."""
    trunk = jax.tree.map(lambda leaf: lax.stop_gradient(leaf.astype(batch["x"].dtype)), params["trunk"])
    x = jax.nn.relu(nets.dense(trunk, "second", jax.nn.relu(nets.dense(trunk, "first", batch["x"]))))
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _frozen_params() -> Tree:
    return {"trunk": layers({"first": (16, 32), "second": (32, 32)}), **layers({"head": (32, nets.CLASSES)})}


def _number(params: Tree, x: Any) -> Any:
    """Returns a column of numbers, one for each example."""
    return nets.dense(params, "head", jnp.tanh(nets.dense(params, "first", x)))


def _number_params() -> Tree:
    return layers({"first": (16, 32), "head": (32, 1)})


def _ranked(params: Tree, batch: Tree) -> Any:
    """Ranks examples by all pairs of their scores."""
    scores, labels = _number(params, batch["x"]), batch["y"][:, None]
    with jax.named_scope("loss"):
        return jnp.maximum(0.0, 1 - jnp.sign(labels - labels.T) * (scores - scores.T)).mean()


def _generated(params: Tree, batch: Tree) -> Any:
    """Draws numbers as far from given ones as they are from each other, the energy distance."""
    drawn, real = _number(params, batch["x"]), batch["x"][:, :1] ** 2
    with jax.named_scope("loss"):
        return 2 * jnp.abs(drawn - real.T).mean() - jnp.abs(drawn - drawn.T + 1e-6).mean()


def _neighbours(params: Tree, batch: Tree) -> Any:
    """Sums messages of neighbours; an index beyond the nodes is padding, and masked."""
    nodes = jnp.tanh(nets.dense(params, "first", batch["x"]))
    with jax.named_scope("messages"):
        present = (batch["neighbours"] < nodes.shape[0])[..., None]
        nodes = nodes + jnp.where(present, nodes[batch["neighbours"]], 0.0).sum(1)
    return nets.cross_entropy(nets.dense(params, "head", nodes), batch["y"])


def _neighbours_params() -> Tree:
    return layers({"first": (16, 32), "head": (32, nets.CLASSES)})


def _graph(seed: int) -> Tree:
    points = _points(seed)
    return {**points, "neighbours": jax.random.randint(nets.key(seed), (24, 4), 0, 30)}


def _case(name: str, loss: Callable[[Any, Any], Any], params: Callable[[], Any], batch: Callable[[int], Any] = _points,
          **options: Any) -> Healthy:  # fmt: skip
    def run() -> Run:
        return prepared(loss, params(), batch, **options)

    return Healthy(name, run)


HEALTHY = (
    _case("padded neighbours", _neighbours, _neighbours_params, _graph),
    _case("all pairs ranked", _ranked, _number_params),
    _case("all pairs ranked, 50 steps", _ranked, _number_params, steps=50),
    _case("energy distance of numbers", _generated, _number_params),
    _case("energy distance of numbers, 50 steps", _generated, _number_params, steps=50),
    _case("sines", _periodic, _periodic_params),
    _case("sines, 50 steps", _periodic, _periodic_params, steps=50, rate=1e-4),
    _case("gated units", gated_unit, gated_unit_params, ids),
    _case("gated units, 50 steps, bfloat16", gated_unit, gated_unit_params, ids, steps=50, dtype=jnp.bfloat16),
    _case("target network", _critic, _critic_params, _transition),
    _case("quantised code", _quantised, _quantised_params),
    _case("narrow adapters", _adapter, _adapter_params),
    _case("narrow adapters, 50 steps", _adapter, _adapter_params, steps=50),
    _case("concatenated features", dense_blocks, dense_blocks_params, lambda s: nets.images(4, seed=s)),
    _case("U-net, zero-initialised output", u_net, u_net_params, lambda s: nets.images(2, seed=s)),
    _case("U-net, 50 steps", u_net, u_net_params, lambda s: nets.images(2, seed=s), steps=50),
    _case("couplings, zero-initialised", _couplings, _couplings_params),
    _case("residual branches of one scope, zero-initialised", _branches, _branches_params),
    _case("frozen trunk", _frozen, _frozen_params),
    _case("experts", experts, experts_params),
    _case("policy and value", policy, policy_params),
    _case("binary classification with padding, 50 steps", _binary, _binary_params, _padded, steps=50, rate=1e-2),
    _case("post-norm residual", _post_norm, lambda: nets.residual(10, normed=True)),
    _case("post-norm residual, 50 steps of SGD", _post_norm, lambda: nets.residual(10, normed=True),
          steps=50, rate=0.01, sgd=True),
    _case("self-normalising chain of 12", _self_normalising, lambda: nets.chain(12, gain=1.0)),
    _case("integrated vector field", _solver,
          lambda: layers({"field1": (16, 32), "field2": (32, 16), "head": (16, nets.CLASSES)})),
    _case("inputs rescaled inside", _normalised_input, lambda: nets.convnet(4), lambda s: nets.images(4, seed=s)),
    _case("chain of 12, He, batch 2", nets.chain_loss(), lambda: nets.chain(12), lambda s: nets.points(2, seed=s)),
    _case("wide chain to a narrow code and back", nets.chain_loss(), _funnel),
)  # fmt: skip
