"""Planted faults on which no threshold was set; their expectations were written before they were run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from findings_bench import nets
from findings_bench.cases import Fault, Run, trained
from findings_bench.held_out_models import (
    dense_blocks,
    dense_blocks_params,
    experts,
    experts_params,
    gated_unit,
    gated_unit_params,
    ids,
    policy,
    policy_params,
    u_net,
    u_net_params,
)  # fmt: skip
from findings_bench.nets import Tree


def _times(tree: Tree, name: str, factor: float) -> Tree:
    return {**tree, name: {**tree[name], "kernel": tree[name]["kernel"] * factor}}


def _nnx_dead() -> Run:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(16, 32, rngs=rngs)
            self.second = nnx.Linear(32, 32, rngs=rngs)
            self.head = nnx.Linear(32, nets.CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(nnx.relu(self.second(nnx.relu(self.first(x)))))

    net = Net(nnx.Rngs(0))
    net.second.bias[...] = jnp.full(32, -50.0)
    return Run(lambda net, batch: nets.cross_entropy(net(batch["x"]), batch["y"]), net, nets.points())


def _keras_sigmoids() -> Run:
    import keras

    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(32, "sigmoid", name=f"layer{n}") for n in range(9)]
    net = keras.Sequential([keras.Input((16,)), *dense, keras.layers.Dense(nets.CLASSES, name="out")])
    names = [each.path for each in net.trainable_variables]

    def loss(params: Any, batch: Any) -> Any:
        out, _ = net.stateless_call([params[name] for name in names], [], batch["x"])
        return nets.cross_entropy(out, batch["y"])

    return Run(loss, {each.path: jnp.asarray(each.value) for each in net.trainable_variables}, nets.points())


def _linen(depth: int, wrap: Callable[[Any], Any], kernel: Any = None, at: int = -1) -> Run:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for n in range(depth):
                options = {"kernel_init": kernel} if kernel is not None and n == at else {}
                x = wrap(nn.Dense(32, **options)(x))
            return nn.Dense(nets.CLASSES)(x)

    net, batch = Net(), nets.points()
    return Run(lambda v, b: nets.cross_entropy(net.apply(v, b["x"]), b["y"]), net.init(nets.key(), batch["x"]), batch)


def _equinox_detached() -> Run:
    import equinox as eqx

    class Net(eqx.Module):
        body: eqx.nn.Linear
        head: eqx.nn.Linear

        def __call__(self, x: Any) -> Any:
            return self.head(lax.stop_gradient(jax.nn.relu(self.body(x))))

    net = Net(eqx.nn.Linear(16, 32, key=nets.key()), eqx.nn.Linear(32, nets.CLASSES, key=nets.key(1)))
    return Run(lambda net, batch: nets.cross_entropy(jax.vmap(net)(batch["x"]), batch["y"]), net, nets.points())


def _detached_value() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        x = nets.named("tanh0", jnp.tanh, nets.dense(params, "dense0", batch["x"]))
        x = nets.named("tanh1", jnp.tanh, nets.dense(params, "dense1", x))
        value = lax.stop_gradient(nets.dense(params, "value", x))
        return nets.cross_entropy(nets.dense(params, "policy", x), batch["y"]) + jnp.square(value).mean()

    return Run(loss, policy_params(), nets.points())


def _ids_beyond() -> Run:
    return Run(gated_unit, gated_unit_params(), {"ids": ids(1)["ids"].at[0, 0].set(60)})


def _temperature() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        logits = nets.run_chain(params, batch["x"])
        with jax.named_scope("temperature"):
            logits = logits / params["temperature"]
        return nets.cross_entropy(logits, batch["y"])

    return Run(loss, {**nets.chain(2), "temperature": jnp.zeros(())}, nets.points())


def _router() -> Run:
    return Run(experts, _times(experts_params(), "router", 200.0), nets.points())


def _half_cotangent() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        logits = nets.run_chain(params, batch["x"].astype(jnp.float16))
        with jax.named_scope("loss"):
            return 65536.0 * 64 * jnp.square(logits.astype(jnp.float32)).sum()

    return Run(loss, nets.chain(3), nets.points())


def _half_exp() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        x = nets.dense(params, "dense0", batch["x"].astype(jnp.float16) * 8)
        x = nets.named("exponential", jnp.exp, x)
        return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])

    return Run(loss, nets.chain(1), nets.points())


def _rate(loss: Any, params: Tree, batch: Any, optimizer: Any) -> Run:
    return Run(loss, trained(loss, params, [batch], optimizer, 20), batch)


def _masked_row() -> Run:
    def mask(scores: Any) -> Any:
        return jnp.where(jnp.arange(scores.shape[-1]) >= 0, -jnp.inf, scores)

    return Run(nets.attention_loss(mask=mask), nets.attention(), nets.tokens())


def _variance() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        out = nets.run_chain(params, batch["x"])
        with jax.named_scope("deviation"):
            spread = jnp.sqrt(jnp.square(out - out.mean(0)).mean(0))
        return nets.cross_entropy(out, batch["y"]) + spread.mean()

    batch = nets.points()
    return Run(loss, nets.chain(2), {"x": batch["x"][:1], "y": batch["y"][:1]})


def _norm_forgotten() -> Run:
    """Returns a pre-norm residual net whose norms were left out, in bfloat16."""
    params = nets.cast(nets.residual(28), jnp.bfloat16)
    return Run(nets.residual_loss, params, nets.cast(nets.points(), jnp.bfloat16))


def _softmax_twice_masked() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        with jax.named_scope("probabilities"):
            shares = jax.nn.softmax(nets.run_chain(params, batch["x"]))
        with jax.named_scope("loss"):
            kept = batch["y"] > nets.CLASSES // 2
            losses = -jnp.take_along_axis(jax.nn.log_softmax(shares), batch["y"][:, None], -1)[:, 0]
            return (losses * kept).sum() / kept.sum()

    return Run(loss, nets.chain(2), nets.points())


def _softmax_in_hidden() -> Run:
    return Run(nets.chain_loss(lambda x: jax.nn.softmax(200 * x)), nets.chain(2), nets.points())


def _probabilities() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        x = nets.named("probabilities", jax.nn.softmax, nets.run_convnet(params, batch["x"]))
        return nets.cross_entropy(x, batch["y"])

    return Run(loss, nets.convnet(3), nets.images())


def _fault(name: str, planted: str, rules: str, layers: str, run: Callable[[], Run]) -> Fault:
    return Fault(name, planted, tuple(rules.split("|")), layers, run)


def _constant(value: float) -> Any:
    return jax.nn.initializers.constant(value)


_ANY = r"(?:dense|act|conv|block|relu)\d+"

FAULTS = (
    _fault("h-nnx-dead", "NNX: the biases of `second` are -50", "dead", "second|.*second", _nnx_dead),
    _fault("h-keras-sigmoids", "Keras: 9 dense layers with sigmoids", "vanishing", r".*layer[0-3]", _keras_sigmoids),
    _fault("h-linen-sigmoids", "Linen: 12 dense layers with unnamed sigmoids", "vanishing", r"Dense_[0-4]",
           lambda: _linen(12, jax.nn.sigmoid)),
    _fault("h-linen-init", "Linen: Dense_2's kernel has deviation 5", "init", "Dense_2",
           lambda: _linen(5, jax.nn.relu, jax.nn.initializers.normal(5.0), 2)),
    _fault("h-linen-constant", "Linen: Dense_1's kernel is 0.05 throughout", "init", "(?:Net/)?Dense_1",
           lambda: _linen(3, jax.nn.gelu, _constant(0.05), 1)),
    _fault("h-linen-zero", "Linen: Dense_1's kernel is zero, before a ReLU", "init", "(?:Net/)?Dense_1",
           lambda: _linen(4, jax.nn.relu, _constant(0.0), 1)),
    _fault("h-equinox-detached", "Equinox: the body is detached", "zero-grad", "body|.*body", _equinox_detached),
    _fault("h-value-detached", "a value head behind stop_gradient", "zero-grad", "value", _detached_value),
    _fault("h-deep-plain-tanh", "36 tanh layers with gain 0.9, bfloat16", "vanishing", r"(?:dense|act)\d\d?",
           lambda: Run(nets.chain_loss(jnp.tanh), nets.cast(nets.chain(36, gain=0.8), jnp.bfloat16),
                       nets.cast(nets.points(), jnp.bfloat16))),
    _fault("h-residual-unnormalised", "28 residual blocks without normalisation, bfloat16", "exploding",
           r"stem|block\d", _norm_forgotten),
    _fault("h-deep-large", "14 layers with kernels 3 times too large", "init", _ANY,
           lambda: Run(nets.chain_loss(), nets.chain(14, gain=4.3), nets.points())),
    _fault("h-deep-small", "14 layers with kernels 5 times too small", "init", _ANY,
           lambda: Run(nets.chain_loss(), nets.chain(14, gain=0.28), nets.points())),
    _fault("h-dense-block", "conv3 of concatenated features is 60 times too large", "init", "conv3",
           lambda: Run(dense_blocks, _times(dense_blocks_params(), "conv3", 60.0), nets.images(4))),
    _fault("h-tanh-large", "dense1 before a tanh is 80 times too large", "init", "dense1",
           lambda: Run(nets.chain_loss(jnp.tanh), _times(nets.chain(3, gain=1.0), "dense1", 80.0), nets.points())),
    _fault("h-u-net-dead", "the bias of the last convolution before a ReLU is -30", "dead", "conv2|act2",
           lambda: Run(nets.convnet_loss,
                       {**(p := nets.convnet(3)), "conv2": {**p["conv2"], "bias": jnp.full(8, -30.0)}},
                       nets.images(2))),
    _fault("h-router", "the router's logits are 200 times too large", "saturated|init", "gates|router", _router),
    _fault("h-hidden-softmax", "a saturated softmax as activation function", "saturated", _ANY, _softmax_in_hidden),
    _fault("h-probabilities", "the loss takes the softmax of a convolutional net's softmax", "saturated",
           "probabilities", _probabilities),
    _fault("h-ids", "a token beyond the vocabulary", "nonfinite", "embed|ids|loss", _ids_beyond),
    _fault("h-temperature", "logits divided by a temperature of zero", "nonfinite", "temperature", _temperature),
    _fault("h-mask", "every position is masked by -inf", "nonfinite", "softmax|scores", _masked_row),
    _fault("h-deviation", "the deviation over a batch of one", "nonfinite", "deviation", _variance),
    _fault("h-half-exp", "exp in float16", "overflow", "exponential", _half_exp),
    _fault("h-half-cotangent", "a loss of 4e6 with float16 layers", "overflow", "head|loss|act2|dense2",
           _half_cotangent),
    _fault("h-half-underflow", "a policy loss of 1e-6 with float16 layers", "underflow",
           "policy|value|value_loss|tanh1|dense1|loss|tanh0|dense0",
           lambda: Run(lambda p, b: 1e-6 * policy(p, b).astype(jnp.float32), nets.cast(policy_params(), jnp.float16),
                       nets.cast(nets.points(), jnp.float16))),
    _fault("h-rate-relu", "20 steps of SGD with rate 100 on a convolutional net", "dead|exploding|nonfinite",
           f"{_ANY}|head|pool|loss|x",
           lambda: _rate(nets.convnet_loss, nets.convnet(3), nets.images(), optax.sgd(100.0))),
    _fault("h-rate-u-net", "20 steps of SGD with rate 3 on a U-net", "nonfinite|exploding", ".*",
           lambda: _rate(u_net, u_net_params(), nets.images(2), optax.sgd(3.0))),
    _fault("h-rate-sigmoid", "20 steps of Adam with rate 10 on sigmoids", "saturated", _ANY,
           lambda: _rate(nets.chain_loss(jax.nn.sigmoid), nets.chain(3, gain=1.0), nets.points(), optax.adam(10.0))),
    _fault("h-input-pixels", "images of 0 to 255", "exploding", "x|conv0",
           lambda: Run(nets.convnet_loss, nets.convnet(3), {**(b := nets.images()), "x": 128 + 64 * b["x"]})),
    _fault("h-softmax-masked", "the loss takes the softmax of a softmax, and masks examples", "saturated",
           "probabilities", _softmax_twice_masked),
    _fault("h-unused-block", "a transformer block is not called", "unused-param", "block3",
           lambda: Run(lambda p, b: gated_unit({**p, "block3": gated_unit_params()["block3"]}, b),
                       gated_unit_params(), ids(1))),
)  # fmt: skip
