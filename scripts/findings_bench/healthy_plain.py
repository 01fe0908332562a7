"""Healthy models of plain functions: the zoo, and networks with habits that look like faults and are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from findings_bench import nets
from findings_bench.cases import Healthy, Run, trained
from findings_bench.nets import Tree
from models import linear_regression, mlp, resnet50
from models.transformer import Transformer

Make = Callable[[int], Tree]


def _zoo(model: Any, size: int, *, steps: int = 0, dtype: Any = jnp.float32, rate: float = 1e-3) -> Run:
    return prepared(model.loss, model.init(nets.key()), lambda seed: model.batch(nets.key(seed), size),
                    steps=steps, dtype=dtype, rate=rate)  # fmt: skip


def prepared(
    loss: Callable[[Any, Any], Any],
    variables: Any,
    batch: Make,
    *,
    steps: int = 0,
    dtype: Any = jnp.float32,
    rate: float = 1e-3,
    sgd: bool = False,
) -> Run:
    """Returns the run of a model after some steps of training on four batches, on a fifth one."""
    variables = nets.cast(variables, dtype)
    batches = [nets.cast(batch(seed), dtype) for seed in range(1, 6)]
    if steps:
        optimizer = optax.sgd(rate) if sgd else optax.adam(rate)
        variables = trained(loss, variables, batches[:4], optimizer, steps)
    return Run(loss, variables, batches[4])


def _small_transformer(**options: Any) -> Transformer:
    return Transformer(layers=3, width=32, heads=2, vocabulary=64, length=16, **options)


class _ResNet:
    init = staticmethod(jax.jit(resnet50.init))
    loss = staticmethod(resnet50.loss)

    @staticmethod
    def batch(key: Any, size: int) -> Any:
        """Returns images of a quarter of the width and height."""
        batch = resnet50.batch(key, size)
        return {name: each[:, ::4, ::4] if each.ndim == 4 else each for name, each in batch.items()}


def _points(seed: int, size: int = 32) -> Tree:
    return nets.points(size, seed=seed)


def _images(seed: int, size: int = 8) -> Tree:
    return nets.images(size, seed=seed)


def _straight_through(kernel: Array) -> Array:
    return kernel + lax.stop_gradient(nets.quantised(kernel) - kernel)


def _soft_threshold(x: Array) -> Array:
    return jnp.sign(x) * jax.nn.relu(jnp.abs(x) - 0.3)


def _autoencoder(params: Tree, batch: Tree) -> Any:
    x = batch["x"]
    for name, activation in (("down", jnp.tanh), ("code", jnp.tanh), ("up", jnp.tanh)):
        x = nets.named(f"{name}_tanh", activation, nets.dense(params, name, x))
    out = nets.dense(params, "out", x)
    with jax.named_scope("loss"):
        return jnp.square(out - batch["x"]).mean()


def _autoencoder_params() -> Tree:
    sizes = {"down": (16, 8), "code": (8, 2), "up": (2, 8), "out": (8, 16)}
    return {name: nets.layer(n, shape) for n, (name, shape) in enumerate(sizes.items())}


def _zeroed(params: Tree, *names: str) -> Tree:
    return {name: jax.tree.map(jnp.zeros_like, each) if name in names else each for name, each in params.items()}


def _zero_branches() -> Tree:
    params = nets.residual(4, normed=True)
    return {name: _zeroed(each, "down") if name.startswith("block") else each for name, each in params.items()}


def _masked_attention(scores: Any) -> Any:
    visible = jnp.tri(scores.shape[-1], dtype=bool)
    return jnp.where(visible, scores, -jnp.inf)


def _auxiliary(params: Tree, batch: Tree) -> Any:
    """Returns the loss, and a metric that is NaN."""
    logits = nets.run_chain(params, batch["x"])
    with jax.named_scope("metrics"):
        metric = jnp.log(logits.min()) + nets.dense(params, "dense0", batch["x"]).mean()
    return nets.cross_entropy(logits, batch["y"]), {"metric": metric, "mean": params["average"]["mean"] * 0.9}


def _auxiliary_run() -> Run:
    def loss(variables: Any, batch: Any) -> Any:
        return _auxiliary({**variables["params"], "average": variables["average"]}, batch)

    variables = {"params": nets.chain(2), "average": {"mean": jnp.zeros(3)}}
    return Run(loss, variables, nets.points(), has_aux=True)


def _gru(params: Tree, batch: Tree) -> Any:
    def step(state: Any, x: Any) -> tuple[Any, None]:
        joined = jnp.concatenate([x, state], -1)
        update = nets.named("update_gate", jax.nn.sigmoid, nets.dense(params, "update", joined))
        reset = nets.named("reset_gate", jax.nn.sigmoid, nets.dense(params, "reset", joined))
        joined = jnp.concatenate([x, reset * state], -1)
        new = nets.named("tanh", jnp.tanh, nets.dense(params, "new", joined))
        return (1 - update) * state + update * new, None

    x = jnp.moveaxis(batch["x"], 1, 0)
    with jax.named_scope("cell"):
        state, _ = lax.scan(step, jnp.zeros((x.shape[1], 16)), x)
    return nets.cross_entropy(nets.dense(params, "head", state), batch["y"])


def _gru_params() -> Tree:
    return {name: nets.layer(n, (20, 16)) for n, name in enumerate(("update", "reset", "new"))} | {
        "head": nets.layer(9, (16, nets.CLASSES))
    }


def _variational(params: Tree, batch: Tree) -> Any:
    x = nets.named("relu", jax.nn.relu, nets.dense(params, "encoder", batch["x"]))
    mean, log_variance = nets.dense(params, "mean", x), nets.dense(params, "log_variance", x)
    with jax.named_scope("sample"):
        code = mean + jnp.exp(log_variance / 2) * batch["noise"]
    x = nets.named("relu2", jax.nn.relu, nets.dense(params, "decoder", code))
    out = nets.dense(params, "out", x)
    with jax.named_scope("loss"):
        divergence = 0.5 * (jnp.square(mean) + jnp.exp(log_variance) - 1 - log_variance).mean()
        return jnp.square(out - batch["x"]).mean() + divergence


def _padded_gates(params: Tree, batch: Tree) -> Any:
    """Classifies each position through gates that are closed at first, and most positions are padding."""
    gate = nets.dense(params, "gate", batch["x"])
    with jax.named_scope("mixed"):
        x = jax.nn.sigmoid(gate) * jnp.tanh(nets.dense(params, "dense", batch["x"]))
    logits = jax.nn.log_softmax(nets.dense(params, "head", x))
    with jax.named_scope("loss"):
        own = jnp.take_along_axis(logits, batch["y"][..., None], -1)[..., 0]
        return -jnp.where(jnp.arange(12) < 1, own, 0.0).sum() / own.shape[0]


def _padded_params() -> Tree:
    gate = {"kernel": nets.kernel(1, (16, 32)), "bias": jnp.where(jnp.arange(32) < 28, -5.0, 0.0)}
    return {"gate": gate, "dense": nets.layer(2, (16, 32)), "head": nets.layer(3, (32, nets.CLASSES))}


def _padded(seed: int) -> Tree:
    x = jax.random.normal(nets.key(seed), (8, 12, 16))
    return {"x": x, "y": jnp.argmax(x[..., : nets.CLASSES], axis=-1)}


def _variational_params() -> Tree:
    sizes = {"encoder": (16, 32), "mean": (32, 4), "log_variance": (32, 4), "decoder": (4, 32), "out": (32, 16)}
    return {name: nets.layer(n, shape) for n, (name, shape) in enumerate(sizes.items())}


def _noised(seed: int) -> Tree:
    return {**_points(seed), "noise": jax.random.normal(nets.key(seed + 50), (32, 4))}


def _contrastive(params: Tree, batch: Tree) -> Any:
    def unit(x: Any) -> Any:
        return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)

    left = nets.dense(params, "left", batch["x"])
    right = nets.dense(params, "right", batch["x"][:, ::-1])
    with jax.named_scope("similarity"):
        logits = unit(left) @ unit(right).T * jnp.exp(params["temperature"])
    return nets.cross_entropy(logits, jnp.arange(logits.shape[0]))


def _weighted(weight: float) -> Run:
    loss = nets.chain_loss()
    return prepared(lambda params, batch: loss(params, batch) * weight, nets.chain(6), _points)


def _case(name: str, run: Callable[[], Run]) -> Healthy:
    return Healthy(name, run)


HEALTHY = (
    _case("mlp, batch 64", lambda: _zoo(mlp, 64)),
    _case("mlp, batch 1", lambda: _zoo(mlp, 1)),
    _case("mlp, batch 4, bfloat16", lambda: _zoo(mlp, 4, dtype=jnp.bfloat16)),
    _case("mlp, batch 64, 50 steps", lambda: _zoo(mlp, 64, steps=50, rate=1e-2)),
    _case("mlp, batch 64, 3 steps of SGD",
          lambda: prepared(mlp.loss, mlp.init(nets.key()), lambda s: mlp.batch(nets.key(s), 64),
                           steps=3, rate=0.1, sgd=True)),
    _case("linear_regression, batch 16", lambda: _zoo(linear_regression, 16)),
    _case("linear_regression, batch 16, 50 steps", lambda: _zoo(linear_regression, 16, steps=50, rate=0.1)),
    _case("transformer, batch 4", lambda: _zoo(_small_transformer(), 4)),
    _case("transformer, batch 1, unrolled", lambda: _zoo(_small_transformer(unroll=True), 1)),
    _case("transformer, batch 8, 50 steps", lambda: _zoo(_small_transformer(), 8, steps=50)),
    _case("transformer, batch 8, bfloat16", lambda: _zoo(_small_transformer(), 8, dtype=jnp.bfloat16)),
    _case("resnet50, batch 4", lambda: _zoo(_ResNet(), 4)),
    _case("deep pre-norm residual, batch 32",
          lambda: prepared(nets.residual_loss, nets.residual(12, normed=True), _points)),
    _case("deep pre-norm residual, 50 steps",
          lambda: prepared(nets.residual_loss, nets.residual(12, normed=True), _points, steps=50)),
    _case("residual, zero-initialised branches",
          lambda: prepared(nets.residual_loss, _zero_branches(), _points)),
    _case("chain of 8, He", lambda: prepared(nets.chain_loss(), nets.chain(8), _points)),
    _case("chain of 8, He, 50 steps of SGD",
          lambda: prepared(nets.chain_loss(), nets.chain(8), _points, steps=50, rate=0.05, sgd=True)),
    _case("chain of 6, LeCun", lambda: prepared(nets.chain_loss(), nets.chain(6, gain=1.0), _points)),
    _case("chain of 5, tanh", lambda: prepared(nets.chain_loss(jnp.tanh), nets.chain(5, gain=1.0), _points)),
    _case("chain of 4, kernels of 4 bits, 50 steps",
          lambda: prepared(nets.chain_loss_of(_straight_through), nets.chain(4), _points, steps=50)),
    _case("chain of 4, soft thresholds, 50 steps",
          lambda: prepared(nets.chain_loss(_soft_threshold), nets.chain(4), _points, steps=50)),
    _case("chain of 3, sigmoid, 50 steps",
          lambda: prepared(nets.chain_loss(jax.nn.sigmoid), nets.chain(3, gain=1.0), _points, steps=50, rate=1e-2)),
    _case("chain with a zero-initialised head",
          lambda: prepared(nets.chain_loss(), _zeroed(nets.chain(3), "head"), _points)),
    _case("convolutions, batch 1", lambda: prepared(nets.convnet_loss, nets.convnet(5), lambda s: _images(s, 1))),
    _case("convolutions, batch 8, 50 steps", lambda: prepared(nets.convnet_loss, nets.convnet(5), _images, steps=50)),
    _case("autoencoder, 50 steps",
          lambda: prepared(_autoencoder, _autoencoder_params(), _points, steps=50, rate=1e-2)),
    _case("variational autoencoder", lambda: prepared(_variational, _variational_params(), _noised)),
    _case("attention", lambda: prepared(nets.attention_loss(), nets.attention(), lambda _: nets.tokens())),
    _case("attention masked by -inf",
          lambda: prepared(nets.attention_loss(mask=_masked_attention), nets.attention(), lambda _: nets.tokens())),
    _case("gated recurrence, 16 steps",
          lambda: prepared(_gru, _gru_params(), lambda _: nets.sequences(16))),
    _case("closed gates of texts that are mostly padding",
          lambda: prepared(_padded_gates, _padded_params(), _padded)),
    _case("contrastive pair",
          lambda: prepared(_contrastive, {"left": nets.layer(0, (16, 16)), "right": nets.layer(1, (16, 16)),
                                          "temperature": jnp.asarray(math.log(10.0))}, _points)),
    _case("chain with the loss times 1e-6", lambda: _weighted(1e-6)),
    _case("chain with the loss times 1e6", lambda: _weighted(1e6)),
    _case("auxiliary NaN and an unused average", _auxiliary_run),
)  # fmt: skip
