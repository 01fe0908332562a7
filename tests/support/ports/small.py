"""Small ports, each of one difference between the frameworks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

Array = Any


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(300 + seed).normal(size=shape).astype(np.float32)


def _square_dense() -> Port:
    """Square kernels under equal names, stored transposed."""
    kernels = {f"layer{number}": _normal(number, 6, 6) / 2 for number in range(4)}
    batch = _normal(9, 4, 6)

    def net(*, transposed: bool) -> Any:
        def loss(kernels: Any, x: Any) -> Any:
            for name in kernels:
                with jax.named_scope(name):
                    x = jnp.tanh(x @ (kernels[name].T if transposed else kernels[name]))
            return jnp.square(x).mean()

        return loss

    stored = {name: np.ascontiguousarray(kernel.T) for name, kernel in kernels.items()}
    return Port(
        name="square dense layers",
        reference=(net(transposed=False), kernels, batch),
        candidate=lambda _: (net(transposed=True), stored, batch),
    )


def _decoder() -> Port:
    """A transposed convolution, whose kernel PyTorch flips and stores as `[in, out, kh, kw]`."""
    weights = {"up": {"weight": _normal(20, 5, 4, 3, 3), "bias": _normal(21, 4)}}
    ported = {
        "up": {"kernel": weights["up"]["weight"].transpose(2, 3, 0, 1)[::-1, ::-1], "bias": weights["up"]["bias"]}
    }

    def net(layers: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope("up"):
                x = layers.conv_transpose(weights["up"], x)
            with jax.named_scope("out"):
                x = jnp.tanh(x)
            return jnp.square(x).mean()

        return loss

    def candidate(_: str) -> Program:
        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope("up"):
                x = flax_like.conv_transpose(weights["up"], x)
            with jax.named_scope("out"):
                x = jnp.tanh(x)
            return jnp.square(x).mean()

        return loss, ported, _normal(22, 2, 5, 5, 5).transpose(0, 2, 3, 1)

    return Port(
        name="a transposed convolution",
        reference=(net(torch_like), weights, _normal(22, 2, 5, 5, 5)),
        candidate=candidate,
    )


def _recurrent_weights() -> dict[str, dict[str, Array]]:
    return {
        "lstm": {"weight_ih": _normal(30, 24, 6), "weight_hh": _normal(31, 24, 6) / 2, "bias": _normal(32, 24)},
        "head": {"weight": _normal(33, 3, 6), "bias": _normal(34, 3)},
    }


def _recurrent_reference(weights: Any, xs: Any) -> Any:
    with jax.named_scope("lstm"):
        h = torch_like.lstm(weights["lstm"], xs)
    with jax.named_scope("head"):
        return jnp.square(torch_like.linear(weights["head"], h)).mean()


def _recurrent(name: str, port: Any, weights: Any) -> Port:
    def loss(weights: Any, xs: Any) -> Any:
        h = c = jnp.zeros((xs.shape[0], 6))
        with jax.named_scope("lstm"):
            for t in range(xs.shape[1]):
                with jax.named_scope(f"step{t}"):
                    i, f, g, o = port(weights["lstm"], xs[:, t], h)
                    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                    h = jax.nn.sigmoid(o) * jnp.tanh(c)
        with jax.named_scope("head"):
            return jnp.square(flax_like.dense(weights["head"], h)).mean()

    batch = _normal(35, 4, 3, 6)
    return Port(
        name=name,
        reference=(_recurrent_reference, _recurrent_weights(), batch),
        candidate=lambda _: (loss, weights, batch),
    )


def _ordered_gates() -> Port:
    """The gates of an LSTM in Haiku's order: input, cell, forget, output."""
    own = _recurrent_weights()

    def reordered(gates: Array) -> Array:
        i, f, g, o = np.split(gates, 4)
        return np.concatenate([i, g, f, o]).T

    def gates(weights: Any, x: Any, h: Any) -> Any:
        i, g, f, o = jnp.split(x @ weights["w_i"] + h @ weights["w_h"] + weights["b"], 4, axis=-1)
        return i, f, g, o

    lstm = {"w_i": "weight_ih", "w_h": "weight_hh", "b": "bias"}
    weights = {
        "lstm": {new: reordered(own["lstm"][old]) for new, old in lstm.items()},
        "head": {"kernel": own["head"]["weight"].T, "bias": own["head"]["bias"]},
    }
    return _recurrent("an LSTM with another order of gates", gates, weights)


def _separate_gates() -> Port:
    """One kernel for each gate of an LSTM, as in Flax."""
    own = _recurrent_weights()

    def gates(weights: Any, x: Any, h: Any) -> Any:
        for gate in "ifgo":
            yield x @ weights[f"i{gate}"]["kernel"] + h @ weights[f"h{gate}"]["kernel"] + weights[f"h{gate}"]["bias"]

    lstm: dict[str, dict[str, Array]] = {}
    for number, gate in enumerate("ifgo"):
        part = slice(6 * number, 6 * number + 6)
        lstm[f"i{gate}"] = {"kernel": own["lstm"]["weight_ih"][part].T}
        lstm[f"h{gate}"] = {"kernel": own["lstm"]["weight_hh"][part].T, "bias": own["lstm"]["bias"][part]}
    weights = {"lstm": lstm, "head": {"kernel": own["head"]["weight"].T, "bias": own["head"]["bias"]}}
    return _recurrent("an LSTM with a kernel for each gate", gates, weights)


def _blocks() -> Port:
    """A scan over blocks, and the same written out: every block is called `block`."""
    kernels = {f"{number}": _normal(40 + number, 8, 8) / 3 for number in range(4)}

    def block(kernel: Any, x: Any) -> Any:
        with jax.named_scope("block"):
            with jax.named_scope("up"):
                y = x @ kernel
            with jax.named_scope("act"):
                return x + jnp.tanh(y)

    def scanned(kernels: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(jax.checkpoint(lambda x, kernel: (block(kernel, x), None)), x, kernels["block"])
        return jnp.square(x).mean()

    def unrolled(kernels: Any, x: Any) -> Any:
        for number in range(4):
            x = block(kernels["block"][str(number)], x)
        return jnp.square(x).mean()

    batch = _normal(49, 3, 8)
    return Port(
        name="blocks written out",
        reference=(scanned, {"block": np.stack(list(kernels.values()))}, batch),
        candidate=lambda _: (unrolled, {"block": kernels}, batch),
    )


def _without_scopes() -> Port:
    """A network whose port names no layer."""
    weights = {
        "conv": {"weight": _normal(50, 8, 8, 3, 3) / 8, "bias": _normal(51, 8)},
        "norm": {"weight": 1 + _normal(52, 8) / 4, "bias": _normal(53, 8)},
        "head": {"weight": _normal(54, 3, 8), "bias": _normal(55, 3)},
    }

    def reference(weights: Any, x: Any) -> Any:
        with jax.named_scope("conv"):
            x = torch_like.conv(weights["conv"], x)
        with jax.named_scope("norm"):
            x = torch_like.group_norm(weights["norm"], x, 2)
        with jax.named_scope("act"):
            x = jax.nn.silu(x)
        with jax.named_scope("pool"):
            x = x.mean((2, 3))
        with jax.named_scope("head"):
            x = torch_like.linear(weights["head"], x)
        return jnp.square(x).mean()

    def port(weights: Any, x: Any) -> Any:
        x = flax_like.conv(weights["Conv_0"], x)
        x = flax_like.group_norm(weights["GroupNorm_0"], x, 2)
        x = jax.nn.silu(x).mean((1, 2))
        return jnp.square(flax_like.dense(weights["Dense_0"], x)).mean()

    batch = _normal(56, 2, 8, 8, 8)
    ported = {
        "Conv_0": {"kernel": weights["conv"]["weight"].transpose(2, 3, 1, 0), "bias": weights["conv"]["bias"]},
        "GroupNorm_0": {"scale": weights["norm"]["weight"], "bias": weights["norm"]["bias"]},
        "Dense_0": {"kernel": weights["head"]["weight"].T, "bias": weights["head"]["bias"]},
    }
    return Port(
        name="a network without scopes",
        reference=(reference, weights, batch),
        candidate=lambda _: (port, ported, batch.transpose(0, 2, 3, 1)),
    )


def _shifted_numbers() -> Port:
    """Layers counted from 0 in one framework and from 1 in the other."""
    kernels = [_normal(60 + number, 8, 8) / 2 for number in range(4)]

    def net(names: list[str], *, transposed: bool) -> Any:
        def loss(kernels: Any, x: Any) -> Any:
            for name in names:
                with jax.named_scope(name):
                    kernel = kernels[name]["weight" if transposed else "kernel"]
                    x = jnp.tanh(x @ (kernel.T if transposed else kernel))
            return jnp.square(x).mean()

        return loss

    old, new = ([spelling.format(number) for number in numbers] for spelling, numbers in (
        ("layers.{}", range(4)), ("layers_{}", range(1, 5))
    ))  # fmt: skip
    batch = _normal(69, 3, 8)
    stored = {name: {"weight": kernel} for name, kernel in zip(old, kernels, strict=True)}
    ported = {name: {"kernel": kernel.T} for name, kernel in zip(new, kernels, strict=True)}
    return Port(
        name="layers counted from one",
        reference=(net(old, transposed=True), stored, batch),
        candidate=lambda _: (net(new, transposed=False), ported, batch),
    )


SMALL = (
    _square_dense(),
    _decoder(),
    _ordered_gates(),
    _separate_gates(),
    _blocks(),
    _without_scopes(),
    _shifted_numbers(),
)
