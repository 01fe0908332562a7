"""Faults of values: initialisation, normalisation, activation functions, learning rate, dtypes, inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from findings_bench import nets
from findings_bench.cases import Fault, Run, trained
from findings_bench.nets import Tree
from models.transformer import Transformer

_INNER = r"(?:dense|act)\d+"
_EARLY = r"(?:dense|act|conv)[0-4]|x"


def _scaled(tree: Tree, name: str, factor: float) -> Tree:
    *outer, last = name.split("/")
    if outer:
        return {**tree, outer[0]: _scaled(tree[outer[0]], "/".join([*outer[1:], last]), factor)}
    return {**tree, last: jax.tree.map(lambda leaf: leaf * factor, tree[last])}


def _biased(tree: Tree, name: str, value: Any) -> Tree:
    return {**tree, name: {**tree[name], "bias": jnp.zeros_like(tree[name]["bias"]) + value}}


def _filled(tree: Tree, value: float, names: str = "dense") -> Tree:
    filled = {name: {**each, "kernel": jnp.full_like(each["kernel"], value)} for name, each in tree.items()
              if name.startswith(names)}  # fmt: skip
    return {**tree, **filled}


def _chain(params: Tree, activation: Any = jax.nn.relu, batch: Tree | None = None) -> Run:
    return Run(nets.chain_loss(activation), params, nets.points() if batch is None else batch)


def _after(
    learning_rate: float, params: Tree, activation: Any, *, adam: bool = False, batch: Tree | None = None
) -> Run:
    batch = nets.points() if batch is None else batch
    loss = nets.chain_loss(activation)
    optimizer = (optax.adam if adam else optax.sgd)(learning_rate)
    return Run(loss, trained(loss, params, [batch], optimizer, 20), batch)


def _transformer() -> Run:
    model = Transformer(layers=3, width=32, heads=2, vocabulary=64, length=16)
    variables = model.init(nets.key())
    params = _scaled(variables["params"], "block/attn/out", 60.0)
    return Run(model.loss, {"params": params}, model.batch(nets.key(1), 4))


def _regression_after(learning_rate: float) -> Run:
    batch = {"x": nets.points()["x"], "t": nets.points()["x"].sum(-1, keepdims=True)}

    def loss(params: Tree, batch: Tree) -> Any:
        out = nets.dense(params, "head", nets.named("act0", jnp.tanh, nets.dense(params, "dense0", batch["x"])))
        with jax.named_scope("loss"):
            return jnp.square(out.sum(-1, keepdims=True) - batch["t"]).mean()

    return Run(loss, trained(loss, nets.chain(1), [batch], optax.sgd(learning_rate), 20), batch)


def _closed(gate: float) -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        x = batch["x"]
        for n in range(3):
            x = nets.named(f"act{n}", jax.nn.relu, nets.dense(params, f"dense{n}", x))
        return nets.cross_entropy(nets.dense(params, "head", x * jax.nn.sigmoid(params["gate"])), batch["y"])

    return Run(loss, {**nets.chain(3), "gate": jnp.asarray(gate)}, nets.points())


def _highway() -> Run:
    params = {**nets.chain(2), "gate": nets.layer(50, (32, 32))}
    params = _biased(params, "gate", 30.0)

    def loss(params: Tree, batch: Tree) -> Any:
        x = nets.named("act0", jax.nn.relu, nets.dense(params, "dense0", batch["x"]))
        gate = nets.named("sigmoid", jax.nn.sigmoid, nets.dense(params, "gate", x))
        new = nets.named("act1", jax.nn.relu, nets.dense(params, "dense1", x))
        with jax.named_scope("mix"):
            x = gate * x + (1 - gate) * new
        return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])

    return Run(loss, params, nets.points())


def _softmax_twice(name: str) -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        logits = nets.run_chain(params, batch["x"])
        return nets.cross_entropy(nets.named(name, jax.nn.softmax, logits), batch["y"])

    return Run(loss, nets.chain(2), nets.points())


def _half(factor: float, weight: float, name: str = "dense1") -> Run:
    params = nets.cast(_scaled(nets.chain(3), name, factor), jnp.float16)

    def loss(params: Tree, batch: Tree) -> Any:
        return nets.chain_loss()(params, {**batch, "x": batch["x"].astype(jnp.float16)}) * weight

    return Run(loss, params, nets.points())


def _half_unscaled() -> Run:
    params = nets.chain(3)

    def loss(params: Tree, batch: Tree) -> Any:
        logits = nets.run_chain(params, batch["x"].astype(jnp.float16))
        with jax.named_scope("loss"):
            return 1e-5 * jnp.square(logits.astype(jnp.float32)).mean()

    return Run(loss, params, nets.points())


def _linen_dead() -> Run:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(3):
                x = nn.relu(nn.Dense(32)(x))
            return nn.Dense(nets.CLASSES)(x)

    net, batch = Net(), nets.points()
    params = net.init(nets.key(), batch["x"])["params"]
    params = _biased(params, "Dense_1", -20.0)
    return Run(lambda v, b: nets.cross_entropy(net.apply(v, b["x"]), b["y"]), {"params": params}, batch)


def _recurrence(gain: float, length: int, activation: Any) -> Run:
    return Run(nets.recurrent_loss(activation), nets.recurrent(gain=gain), nets.sequences(length))


def _silent_norm() -> Run:
    params = nets.residual(3, normed=True)
    params["block1"]["norm"] = jax.tree.map(jnp.zeros_like, params["block1"]["norm"])
    return Run(nets.residual_loss, params, nets.points())


def _signs(width: int) -> Any:
    return 25.0 * jnp.sign(jax.random.normal(nets.key(8), (width,)))


def _positive() -> Tree:
    return {**nets.points(), "x": jnp.abs(nets.points()["x"]) + 1}


def _fault(name: str, planted: str, rules: str, layers: str, run: Callable[[], Run]) -> Fault:
    return Fault(name, planted, tuple(rules.split("|")), layers, run)


FAULTS = (
    _fault("init-large-all", "every kernel of 8 layers is 8 times too large", "init", _INNER,
           lambda: _chain(nets.chain(8, gain=8 * math.sqrt(2)))),
    _fault("init-normal-all", "every kernel of 3 layers is 4 times too large", "init", _INNER + "|head",
           lambda: _chain(nets.chain(3, gain=math.sqrt(32)))),
    _fault("init-small-all", "every kernel of 8 tanh layers is 20 times too small", "init", _INNER,
           lambda: _chain(nets.chain(8, gain=0.05), jnp.tanh)),
    _fault("init-large-one", "dense3 of 8 layers is 50 times too large", "init", "dense3",
           lambda: _chain(_scaled(nets.chain(8), "dense3", 50.0))),
    _fault("init-small-one", "dense3 of 8 layers is 100 times too small", "init", "dense3",
           lambda: _chain(_scaled(nets.chain(8), "dense3", 0.01))),
    _fault("init-zero-all", "every kernel is zero", "init", _INNER, lambda: _chain(_filled(nets.chain(4), 0.0))),
    _fault("init-zero-one", "dense2 of a ReLU chain is zero", "init", "dense2",
           lambda: _chain(_filled(nets.chain(4), 0.0, "dense2"))),
    _fault("init-constant-all", "every weight is 0.1", "init", _INNER, lambda: _chain(_filled(nets.chain(3), 0.1))),
    _fault("init-constant-one", "every weight of dense1 is 0.2", "init", "dense1",
           lambda: _chain(_filled(nets.chain(4), 0.2, "dense1"))),
    _fault("init-conv", "conv1 is 40 times too large", "init", "conv1",
           lambda: Run(nets.convnet_loss, _scaled(nets.convnet(4), "conv1", 40.0), nets.images())),
    _fault("init-attention-out", "the attention's output kernel is 60 times too large", "init",
           r"block\[\d\]/attn/out", _transformer),
    _fault("sigmoid-stack", "10 layers of sigmoids", "vanishing", _EARLY,
           lambda: _chain(nets.chain(10, gain=1.0), jax.nn.sigmoid)),
    _fault("sigmoid-stack-bf16", "10 layers of sigmoids in bfloat16", "vanishing", _EARLY,
           lambda: _chain(nets.cast(nets.chain(10, gain=1.0), jnp.bfloat16), jax.nn.sigmoid,
                          nets.cast(nets.points(), jnp.bfloat16))),
    _fault("deep-plain", "40 ReLU layers without normalisation, gain 1", "vanishing", _EARLY,
           lambda: _chain(nets.chain(40, gain=1.0))),
    _fault("deep-conv", "24 convolutions without normalisation, gain 1", "vanishing", _EARLY,
           lambda: Run(nets.convnet_loss, nets.convnet(24, gain=1.0), nets.images(4))),
    _fault("deep-residual", "24 residual blocks without normalisation", "exploding", r"stem|block[0-4]|x",
           lambda: Run(nets.residual_loss, nets.residual(24), nets.points())),
    _fault("recurrence-vanishing", "a tanh recurrence of gain 0.6 over 30 steps", "vanishing", r"cell(?:\[[0-4]\])?.*",
           lambda: _recurrence(0.6, 30, jnp.tanh)),
    _fault("recurrence-usual", "a tanh recurrence of gain 1 over 20 steps", "vanishing", r"cell(?:\[[0-4]\])?.*",
           lambda: _recurrence(1.0, 20, jnp.tanh)),
    _fault("recurrence-exploding", "a linear recurrence of gain 1.5 over 30 steps", "exploding",
           r"cell(?:\[\d+\])?.*", lambda: _recurrence(1.5, 30, lambda x: x)),
    _fault("norm-gain-zero", "the gain of a normalisation before a ReLU is zero", "init", "block1/norm", _silent_norm),
    _fault("dead-one", "the bias of dense1 is -20", "dead", "dense1|act1",
           lambda: _chain(_biased(nets.chain(4), "dense1", -20.0))),
    _fault("dead-most", "dense1's bias is -20 in 29 of 32 units", "dead", "dense1|act1",
           lambda: _chain(_biased(nets.chain(4), "dense1", jnp.where(jnp.arange(32) < 29, -20.0, 0.0)))),
    _fault("dead-conv", "the bias of conv1 is -20", "dead", "conv1|act1",
           lambda: Run(nets.convnet_loss, _biased(nets.convnet(3), "conv1", -20.0), nets.images())),
    _fault("dead-linen", "the bias of Dense_1 is -20, and the ReLU has no name", "dead", "Dense_1", _linen_dead),
    _fault("rate-sgd-relu", "20 steps of SGD with rate 30, positive inputs", "dead", _INNER,
           lambda: _after(30.0, nets.chain(3), jax.nn.relu, batch=_positive())),
    _fault("rate-adam-relu", "20 steps of Adam with rate 3", "dead|exploding", f"{_INNER}|head|loss",
           lambda: _after(3.0, nets.chain(4), jax.nn.relu, adam=True)),
    _fault("rate-sgd-tanh", "20 steps of SGD with rate 300", "saturated", _INNER,
           lambda: _after(300.0, nets.chain(3, gain=1.0), jnp.tanh)),
    _fault("rate-diverging", "20 steps of SGD with rate 0.1 on a squared error", "exploding|saturated",
           "dense0|act0|head|loss", lambda: _regression_after(0.1)),
    _fault("rate-nan", "20 steps of SGD with rate 1e4 on a squared error", "nonfinite",
           "dense0|head|act0|loss", lambda: _regression_after(1e4)),
    _fault("saturated-tanh", "dense1's biases are 25 or -25", "saturated", "dense1|act1",
           lambda: _chain(_biased(nets.chain(3, gain=1.0), "dense1", _signs(32)), jnp.tanh)),
    _fault("saturated-tanh-scale", "every kernel of 5 tanh layers is 10 times too large", "saturated|init", _INNER,
           lambda: _chain(nets.chain(5, gain=10.0), jnp.tanh)),
    _fault("saturated-sigmoid", "a sigmoid of 100 times its operand", "saturated", r"act\d|dense\d",
           lambda: _chain(nets.chain(3), lambda x: jax.nn.sigmoid(100 * x))),
    _fault("saturated-gate", "the bias of a gate is 30", "saturated", "gate|sigmoid", _highway),
    _fault("closed-gate", "a parameter of -60, by whose sigmoid features are multiplied", "vanishing", "dense2|head",
           lambda: _closed(-60.0)),
    _fault("attention-unscaled", "scores of 64 features are not scaled", "saturated", "softmax|scores",
           lambda: Run(nets.attention_loss(1.0), nets.attention(), nets.tokens())),
    _fault("attention-multiplied", "scores are multiplied by sqrt(width)", "saturated", "softmax|scores",
           lambda: Run(nets.attention_loss(8.0), nets.attention(), nets.tokens())),
    _fault("softmax-twice", "the loss takes the softmax of a softmax", "saturated", "probabilities",
           lambda: _softmax_twice("probabilities")),
    _fault("half-overflow", "dense1 in float16 is 30000 times too large", "overflow", "dense1",
           lambda: _half(30000.0, 1.0)),
    _fault("half-gradient-overflow", "the loss in float16 is multiplied by 1e7", "overflow", r"head|loss|act\d|dense\d",
           lambda: _half(1.0, 1e7)),
    _fault("half-underflow", "the loss in float16 is multiplied by 1e-5", "underflow", r"head|loss|act\d|dense\d",
           lambda: _half(1.0, 1e-5)),
    _fault("half-underflow-mixed", "a loss of 1e-5 with float16 layers and float32 weights", "underflow",
           r"head|loss|act\d|dense\d", _half_unscaled),
    _fault("input-unscaled", "inputs are 0 to 255", "exploding", "x|dense0",
           lambda: _chain(nets.chain(3), batch={**nets.points(), "x": 128 + 60 * nets.points()["x"]})),
    _fault("input-unscaled-tanh", "inputs are 0 to 255, before tanh", "exploding|saturated", "x|dense0|act0",
           lambda: _chain(nets.chain(3), jnp.tanh, {**nets.points(), "x": 128 + 60 * nets.points()["x"]})),
)  # fmt: skip
