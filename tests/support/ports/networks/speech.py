"""A speech network: convolutions over time, a bidirectional GRU with packed gates, pooling by attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

#: The number of channels and the width of either direction of the GRU.
WIDTH = 6
TIME, CLASSES = 3, 5

Array = Any


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(700 + seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, Any]:
    def linear(seed: int, wide: int, *rest: int) -> dict[str, Array]:
        return {"weight": _normal(seed, wide, *rest) / float(np.prod(rest)) ** 0.5, "bias": _normal(seed + 1, wide) / 3}

    def gru(seed: int) -> dict[str, Array]:
        return {
            "weight_ih": _normal(seed, 3 * WIDTH, WIDTH) / 2, "weight_hh": _normal(seed + 1, 3 * WIDTH, WIDTH) / 2,
            "bias_ih": _normal(seed + 2, 3 * WIDTH) / 3, "bias_hh": _normal(seed + 3, 3 * WIDTH) / 3,
        }  # fmt: skip

    return {
        "conv1": linear(0, WIDTH, 4, 3),
        "bn1": {
            "weight": 1 + _normal(2, WIDTH) / 4, "bias": _normal(3, WIDTH) / 4,
            "running_mean": _normal(4, WIDTH) / 4, "running_var": 1 + np.abs(_normal(5, WIDTH)),
        },
        "conv2": linear(6, WIDTH, WIDTH, 3),
        "ln": {"weight": 1 + _normal(8, WIDTH) / 4, "bias": _normal(9, WIDTH) / 4},
        "rnn": {"forward": gru(20), "backward": gru(30)},
        "query": {"weight": _normal(10, 1, 2 * WIDTH) / 3, "bias": _normal(11, 1)},
        "out": linear(12, CLASSES, 2 * WIDTH),
        "last": linear(14, CLASSES, CLASSES * 2),
    }  # fmt: skip


def _batch() -> dict[str, Array]:
    return {"sound": _normal(40, 4, 4, TIME), "label": np.array([1, 4, 0, 2], np.int32)}


def _conv(weights: Any, x: Array) -> Array:
    y = lax.conv_general_dilated(x, weights["weight"], (1,), [(1, 1)], dimension_numbers=("NCH", "OIH", "NCH"))
    return y + weights["bias"][:, None]


def _gru(own: Any, xs: Array) -> Array:
    """All hidden states; the gates are in PyTorch's order: reset, update, new."""
    h, found = jnp.zeros((xs.shape[0], WIDTH)), []
    for t in range(xs.shape[1]):
        one = xs[:, t] @ own["weight_ih"].T + own["bias_ih"]
        other = h @ own["weight_hh"].T + own["bias_hh"]
        (r1, z1, n1), (r2, z2, n2) = jnp.split(one, 3, axis=-1), jnp.split(other, 3, axis=-1)
        z = jax.nn.sigmoid(z1 + z2)
        h = (1 - z) * jnp.tanh(n1 + jax.nn.sigmoid(r1 + r2) * n2) + z * h
        found.append(h)
    return jnp.stack(found, 1)


def _reference(weights: Any, batch: Any) -> Any:
    with jax.named_scope("conv1"):
        x = _conv(weights["conv1"], batch["sound"])
    with jax.named_scope("bn1"):
        x, statistics = torch_like.batch_norm(weights["bn1"], x)
    with jax.named_scope("relu"):
        x = jax.nn.relu(x)
    with jax.named_scope("conv2"):
        x = _conv(weights["conv2"], x)
    x = x.swapaxes(1, 2)
    with jax.named_scope("ln"):
        x = torch_like.layer_norm(weights["ln"], x)
    with jax.named_scope("rnn"):
        with jax.named_scope("forward"):
            one = _gru(weights["rnn"]["forward"], x)
        with jax.named_scope("backward"):
            other = _gru(weights["rnn"]["backward"], x[:, ::-1])[:, ::-1]
        x = jnp.concatenate([one, other], -1)
    with jax.named_scope("pool"):
        with jax.named_scope("query"):
            scores = torch_like.linear(weights["query"], x)
        x = (jax.nn.softmax(scores, axis=1) * x).sum(1)
    with jax.named_scope("out"):
        x = torch_like.linear(weights["out"], x)
    with jax.named_scope("glue"):
        x = jnp.stack([x, jnp.square(x)], 1).reshape(x.shape[0], -1)
    with jax.named_scope("last"):
        x = torch_like.linear(weights["last"], x)
    return torch_like.cross_entropy(x, batch["label"]), {"bn1": statistics}


def _ported(weights: Any, fault: str) -> dict[str, Any]:
    def conv(own: Any) -> dict[str, Array]:
        return {"kernel": np.ascontiguousarray(own["weight"].transpose(2, 1, 0)), "bias": own["bias"]}

    def dense(own: Any) -> dict[str, Array]:
        return {"kernel": np.ascontiguousarray(own["weight"].T), "bias": own["bias"]}

    def cell(own: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, gate in enumerate("rzn"):
            part = slice(number * WIDTH, (number + 1) * WIDTH)
            found[f"i{gate}"] = {"kernel": np.ascontiguousarray(own["weight_ih"][part].T), "bias": own["bias_ih"][part]}
            found[f"h{gate}"] = {"kernel": np.ascontiguousarray(own["weight_hh"][part].T), "bias": own["bias_hh"][part]}
        return found

    norm = weights["bn1"]
    cells = {"GRUCell_0": cell(weights["rnn"]["forward"]), "GRUCell_1": cell(weights["rnn"]["backward"])}
    if fault == "another weight":
        cells["GRUCell_1"] = cells["GRUCell_0"]
    return {
        "Conv_0": conv(weights["conv1"]),
        "BatchNorm_0": {
            "scale": norm["weight"], "bias": norm["bias"], "mean": norm["running_mean"], "var": norm["running_var"],
        },
        "Conv_1": conv(weights["conv2"]),
        "LayerNorm_0": {"scale": weights["ln"]["weight"], "bias": weights["ln"]["bias"]},
        **cells,
        "AttentionPool_0": {"Dense_0": dense(weights["query"])},
        "Dense_0": dense(weights["out"]),
        "Dense_1": dense(weights["last"]),
    }  # fmt: skip


def _over_time(own: Any, x: Array, *, padding: Any = "SAME", bias: bool = True) -> Array:
    y = lax.conv_general_dilated(x, own["kernel"], (1,), padding, dimension_numbers=("NHC", "HIO", "NHC"))
    return y + own["bias"] if bias else y


def _states(own: Any, xs: Array) -> Array:
    h, found = jnp.zeros((xs.shape[0], WIDTH)), []
    for t in range(xs.shape[1]):
        r, z = (
            jax.nn.sigmoid(flax_like.dense(own[f"i{gate}"], xs[:, t]) + flax_like.dense(own[f"h{gate}"], h))
            for gate in "rz"
        )
        n = jnp.tanh(flax_like.dense(own["in"], xs[:, t]) + r * flax_like.dense(own["hn"], h))
        h = (1 - z) * n + z * h
        found.append(h)
    return jnp.stack(found, 1)


def _candidate(fault: str) -> Program:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Conv_0"):
            x = _over_time(weights["Conv_0"], batch["sound"], padding=[(2, 0)] if fault == "padding" else "SAME")
        with jax.named_scope("BatchNorm_0"):
            momentum = 0.1 if fault == "momentum" else 0.9
            x, statistics = flax_like.batch_norm(weights["BatchNorm_0"], x, momentum=momentum)
        x = jax.nn.leaky_relu(x, 0.2) if fault == "activation" else jax.nn.relu(x)
        with jax.named_scope("Conv_1"):
            own = weights["Conv_1"]
            kernel = own["kernel"][::-1] if fault == "not flipped" else own["kernel"]
            x = _over_time(own | {"kernel": kernel}, x, bias=fault != "no bias")
        with jax.named_scope("LayerNorm_0"):
            x = flax_like.layer_norm(weights["LayerNorm_0"], x, epsilon=1e-2 if fault == "epsilon" else 1e-5)
        with jax.named_scope("GRUCell_0"):
            one = _states(weights["GRUCell_0"], x)
        with jax.named_scope("GRUCell_1"):
            other = jnp.flip(_states(weights["GRUCell_1"], jnp.flip(x, 1)), 1)
        x = jnp.concatenate([one, other], -1)
        x = flax_like.dropout(x) if fault == "dropout" else x
        with jax.named_scope("AttentionPool_0"):
            scores = flax_like.dense(weights["AttentionPool_0"]["Dense_0"], x)
            shares = jnp.full_like(scores, 1 / TIME) if fault == "pooling" else jax.nn.softmax(scores, axis=1)
            x = jnp.einsum("nti,ntc->nc", shares, x)
        with jax.named_scope("Dense_0"):
            x = flax_like.dense(weights["Dense_0"], x)
        x = jnp.stack([x, x * x], 2 if fault == "flattening" else 1).reshape(x.shape[0], -1)
        with jax.named_scope("Dense_1"):
            x = flax_like.dense(weights["Dense_1"], x)
        return torch_like.cross_entropy(x, batch["label"]), {"BatchNorm_0": statistics}

    batch = _batch()
    return loss, _ported(_weights(), fault), batch | {"sound": batch["sound"].transpose(0, 2, 1)}


SPEECH = Port(
    name="a speech network",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("ln",),
        "padding": ("conv1",),
        "flattening": ("last", "glue"),
        "not flipped": ("conv2",),
        "no bias": ("conv2",),
        "momentum": ("bn1/running_mean", "bn1/running_var"),
        "pooling": ("pool", "pool/query"),
        "activation": ("relu", "conv2"),
        "another weight": ("rnn/backward",),
        "dropout": ("rnn", "pool", "pool/query"),
    },
)
