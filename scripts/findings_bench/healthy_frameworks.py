"""Healthy models of the frameworks: Linen, NNX, Equinox, Haiku, Keras, and Flax models of transformers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from findings_bench import nets
from findings_bench.cases import Healthy, Run
from findings_bench.healthy_plain import prepared

os.environ.setdefault("KERAS_BACKEND", "jax")


def _labels(seed: int, size: int) -> Any:
    return jax.random.randint(nets.key(seed + 70), (size,), 0, nets.CLASSES)


def _images(seed: int, size: int, side: int = 16) -> nets.Tree:
    return {"x": jax.random.normal(nets.key(seed), (size, side, side, 3)), "y": _labels(seed, size)}


def _points(seed: int, size: int = 32) -> nets.Tree:
    return nets.points(size, seed=seed)


def _tokens(seed: int, size: int = 4) -> nets.Tree:
    ids = jax.random.randint(nets.key(seed), (size, 12), 1, 50)
    return {"ids": ids, "y": _labels(seed, size)}


def _linen(net: Any, batch: Callable[[int], nets.Tree], *, mutable: bool = False, **options: Any) -> Run:
    variables = jax.jit(net.init)(nets.key(), batch(1)["x"])

    def loss(variables: Any, batch: Any) -> Any:
        out = net.apply(variables, batch["x"], **({"mutable": ["batch_stats"]} if mutable else {}))
        return nets.cross_entropy(out[0] if mutable else out, batch["y"])

    return prepared(loss, variables, batch, **options)


def _linen_mlp() -> Any:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(3):
                x = nn.relu(nn.Dense(32)(x))
            return nn.Dense(nets.CLASSES)(x)

    return Net()


def _linen_convnet() -> Any:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for features in (8, 8, 16, 16):
                x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(features, (3, 3))(x)))
            return nn.Dense(nets.CLASSES)(nn.avg_pool(x, (4, 4), (4, 4)).mean((1, 2)))

    return Net()


def _linen_attention() -> Any:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(32)(x)
            for _ in range(3):
                x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
                x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
            return nn.Dense(nets.CLASSES)(nn.LayerNorm()(x).mean(1))

    return Net()


def _linen_lstm() -> Any:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(nets.CLASSES)(nn.RNN(nn.OptimizedLSTMCell(16))(x)[:, -1])

    return Net()


def _nnx(**options: Any) -> Run:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(16, 32, rngs=rngs)
            self.norm = nnx.LayerNorm(32, rngs=rngs)
            self.second = nnx.Linear(32, 32, rngs=rngs)
            self.head = nnx.Linear(32, nets.CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.relu(self.norm(self.first(x)))
            return self.head(nnx.relu(self.second(x)))

    graph, params = nnx.split(Net(nnx.Rngs(0)))

    def loss(params: Any, batch: Any) -> Any:
        return nets.cross_entropy(nnx.merge(graph, params)(batch["x"]), batch["y"])

    return prepared(loss, params, _points, **options)


def _equinox(name: str, **options: Any) -> Run:
    import equinox as eqx

    if name == "mlp":
        net, batch = eqx.nn.MLP(16, nets.CLASSES, 32, 3, key=nets.key()), _points
    else:
        layers = [eqx.nn.Conv2d(3, 8, 3, key=nets.key(1)), eqx.nn.Lambda(jax.nn.relu), eqx.nn.MaxPool2d(2, 2),
                  eqx.nn.Conv2d(8, 16, 3, key=nets.key(2)), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Lambda(jnp.ravel),
                  eqx.nn.Linear(16 * 25, nets.CLASSES, key=nets.key(3))]  # fmt: skip
        net = eqx.nn.Sequential(layers)

        def batch(seed: int) -> nets.Tree:
            found = _images(seed, 8)
            return {**found, "x": jnp.moveaxis(found["x"], -1, 1)}

    def loss(net: Any, batch: Any) -> Any:
        return nets.cross_entropy(jax.vmap(net)(batch["x"]), batch["y"])

    return prepared(loss, net, batch, **options)


def _haiku(forward: Callable[[Any], Any], batch: Callable[[int], nets.Tree], **options: Any) -> Run:
    import haiku as hk

    net = hk.transform_with_state(forward)
    params, state = jax.jit(net.init)(nets.key(), batch(1)["x"])

    def loss(params: Any, batch: Any) -> Any:
        return nets.cross_entropy(net.apply(params, state, None, batch["x"])[0], batch["y"])

    return prepared(loss, params, batch, **options)


def _haiku_mlp(x: Any) -> Any:
    import haiku as hk

    return hk.nets.MLP([32, 32, nets.CLASSES])(x)


def _haiku_lstm(x: Any) -> Any:
    import haiku as hk

    core = hk.LSTM(16)
    outputs, _ = hk.dynamic_unroll(core, jnp.moveaxis(x, 1, 0), core.initial_state(x.shape[0]))
    return hk.Linear(nets.CLASSES)(outputs[-1])


def _haiku_net(name: str) -> Callable[[Any], Any]:
    def forward(x: Any) -> Any:
        import haiku as hk

        if name == "mobilenet":
            return hk.nets.MobileNetV1(
                num_classes=nets.CLASSES, channels=(8, 16, 16, 32, 32, 32, 32, 32, 32, 32, 64, 64, 64)
            )(x, True)
        return hk.nets.ResNet18(nets.CLASSES)(x, True)

    return forward


def _keras(make: Callable[[Any], Any], batch: Callable[[int], nets.Tree], **options: Any) -> Run:
    import keras

    keras.utils.set_random_seed(0)
    net = make(keras)
    params = {each.path: jnp.asarray(each.value) for each in net.trainable_variables}
    names = [each.path for each in net.trainable_variables]
    others = [jnp.asarray(each.value) for each in net.non_trainable_variables]

    def loss(params: Any, batch: Any) -> Any:
        out, _ = net.stateless_call([params[name] for name in names], others, batch["x"], training=True)
        return nets.cross_entropy(out, batch["y"])

    return prepared(loss, params, batch, **options)


def _keras_dense(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((16,)), layers.Dense(32, "relu"), layers.Dense(32, "relu"), layers.Dense(nets.CLASSES)]
    )


def _keras_convnet(keras: Any) -> Any:
    layers = keras.layers
    first = [layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(), layers.MaxPooling2D()]
    second = [layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(nets.CLASSES)]
    return keras.Sequential([keras.Input((16, 16, 3)), *first, *second])


def _keras_gru(keras: Any) -> Any:
    return keras.Sequential([keras.Input((12, 4)), keras.layers.GRU(16), keras.layers.Dense(nets.CLASSES)])


def _transformers(name: str, **options: Any) -> Run:
    import transformers as t

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if name == "gpt2":
        config = t.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                              resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
        net = t.FlaxGPT2LMHeadModel(config, input_shape=(1, 4))
    elif name == "bert":
        net = t.FlaxBertForSequenceClassification(
            t.BertConfig(vocab_size=50, num_labels=nets.CLASSES, **sizes), input_shape=(1, 4)
        )
    else:
        net = t.FlaxViTForImageClassification(
            t.ViTConfig(image_size=16, patch_size=4, num_labels=nets.CLASSES, **sizes)
        )

    def loss(params: Any, batch: Any) -> Any:
        if name == "vit":
            return nets.cross_entropy(
                net(jnp.moveaxis(batch["x"], -1, 1), params=params, train=False).logits, batch["y"]
            )
        logits = net(batch["ids"], params=params, train=False).logits
        return (
            nets.cross_entropy(logits[:, :-1], batch["ids"][:, 1:])
            if name == "gpt2"
            else nets.cross_entropy(logits, batch["y"])
        )

    params = jax.tree.map(jnp.asarray, net.params)
    return prepared(loss, params, (lambda s: _images(s, 4)) if name == "vit" else _tokens, **options)


def _sequences(seed: int) -> nets.Tree:
    return {**nets.sequences(12), "y": _labels(seed, 8)}


def _case(name: str, run: Callable[[], Run]) -> Healthy:
    return Healthy(name, run)


def _at(size: int) -> Callable[[int], nets.Tree]:
    return lambda seed: _images(seed, size)


HEALTHY = (
    _case("linen MLP, batch 32", lambda: _linen(_linen_mlp(), _points)),
    _case("linen MLP, batch 1", lambda: _linen(_linen_mlp(), lambda seed: _points(seed, 1))),
    _case("linen MLP, 50 steps", lambda: _linen(_linen_mlp(), _points, steps=50, rate=1e-2)),
    _case("linen convolutions, batch 2", lambda: _linen(_linen_convnet(), _at(2), mutable=True)),
    _case("linen convolutions, 50 steps", lambda: _linen(_linen_convnet(), _at(8), mutable=True, steps=50)),
    _case("linen attention, 50 steps", lambda: _linen(_linen_attention(), lambda _: nets.tokens(), steps=50)),
    _case("linen attention, bfloat16", lambda: _linen(_linen_attention(), lambda _: nets.tokens(), dtype=jnp.bfloat16)),
    _case("linen LSTM", lambda: _linen(_linen_lstm(), _sequences)),
    _case("nnx MLP", _nnx),
    _case("nnx MLP, 50 steps of SGD", lambda: _nnx(steps=50, rate=0.1, sgd=True)),
    _case("equinox MLP", lambda: _equinox("mlp")),
    _case("equinox MLP, 50 steps", lambda: _equinox("mlp", steps=50, rate=1e-2)),
    _case("equinox convolutions", lambda: _equinox("convolutions")),
    _case("haiku MLP, 50 steps", lambda: _haiku(_haiku_mlp, _points, steps=50)),
    _case("haiku MobileNet, batch 2", lambda: _haiku(_haiku_net("mobilenet"), lambda s: _images(s, 2, 32))),
    _case("haiku ResNet18, batch 4", lambda: _haiku(_haiku_net("resnet"), lambda s: _images(s, 4, 32))),
    _case("haiku LSTM", lambda: _haiku(_haiku_lstm, _sequences)),
    _case("keras dense", lambda: _keras(_keras_dense, _points)),
    _case("keras convolutions, 50 steps", lambda: _keras(_keras_convnet, _at(8), steps=50)),
    _case("keras GRU, 50 steps", lambda: _keras(_keras_gru, _sequences, steps=50)),
    _case("transformers GPT-2", lambda: _transformers("gpt2")),
    _case("transformers BERT, 50 steps", lambda: _transformers("bert", steps=50)),
    _case("transformers ViT", lambda: _transformers("vit")),
)
