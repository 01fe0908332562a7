"""A text encoder: packed against separate projections, a gated linear unit, an LSTM with its gates in one kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

#: The width of the tokens, which is also that of the LSTM: no shape tells which kernel is transposed.
WIDTH = 8
HEADS, LAYERS, CLASSES = 2, 2, 5

Array = Any


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(400 + seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, Any]:
    def norm(seed: int) -> dict[str, Array]:
        return {"weight": 1 + _normal(seed, WIDTH) / 4, "bias": _normal(seed + 1, WIDTH) / 4}

    def linear(seed: int, wide: int, narrow: int) -> dict[str, Array]:
        return {"weight": _normal(seed, wide, narrow) / narrow**0.5, "bias": _normal(seed + 1, wide) / 4}

    layers = {
        f"layers.{number}": {
            "self_attn": {
                "in_proj_weight": _normal(seed, 3 * WIDTH, WIDTH) / 3,
                "in_proj_bias": _normal(seed + 1, 3 * WIDTH) / 4,
                "out_proj": linear(seed + 2, WIDTH, WIDTH),
            },
            "norm1": norm(seed + 4),
            "linear1": linear(seed + 6, 4 * WIDTH, WIDTH),
            "linear2": linear(seed + 8, WIDTH, 2 * WIDTH),
            "norm2": norm(seed + 10),
        }
        for number, seed in ((0, 20), (1, 40))
    }
    return {
        "embed": {"weight": _normal(0, 11, WIDTH), "positions": _normal(1, 3, WIDTH) / 2},
        **layers,
        "lstm": {
            "weight_ih": _normal(2, 4 * WIDTH, WIDTH) / 3, "weight_hh": _normal(3, 4 * WIDTH, WIDTH) / 3,
            "bias": _normal(4, 4 * WIDTH) / 4,
        },
        "bn": norm(5) | {"running_mean": _normal(7, WIDTH), "running_var": 1 + np.abs(_normal(8, WIDTH))},
        "fc": linear(9, CLASSES, WIDTH),
    }  # fmt: skip


def _batch() -> dict[str, Array]:
    draw = np.random.default_rng(460)
    tokens = draw.integers(1, 11, size=(4, 3)).astype(np.int32)
    tokens[0, 1:] = tokens[2, 2:] = 0
    return {"tokens": tokens, "label": np.array([3, 1, 4, 0], np.int32)}


def _torch_attention(weights: Any, x: Array, hidden: Array) -> Array:
    n, t, _ = x.shape
    qkv = x @ weights["in_proj_weight"].T + weights["in_proj_bias"]
    q, k, v = (part.reshape(n, t, HEADS, -1).transpose(0, 2, 1, 3) for part in jnp.split(qkv, 3, axis=-1))
    scores = q @ k.swapaxes(-1, -2) / (WIDTH // HEADS) ** 0.5
    shares = jax.nn.softmax(jnp.where(hidden[:, None, None], -1e9, scores))
    mixed = (shares @ v).transpose(0, 2, 1, 3).reshape(n, t, WIDTH)
    with jax.named_scope("out_proj"):
        return torch_like.linear(weights["out_proj"], mixed)


def _reference(weights: Any, batch: Any) -> Any:
    hidden = batch["tokens"] == 0
    with jax.named_scope("embed"):
        x = weights["embed"]["weight"][batch["tokens"]] + weights["embed"]["positions"]
    for number in range(LAYERS):
        own = weights[f"layers.{number}"]
        with jax.named_scope(f"layers.{number}"):
            with jax.named_scope("norm1"):
                y = torch_like.layer_norm(own["norm1"], x)
            with jax.named_scope("self_attn"):
                x = x + _torch_attention(own["self_attn"], y, hidden)
            with jax.named_scope("norm2"):
                y = torch_like.layer_norm(own["norm2"], x)
            with jax.named_scope("linear1"):
                y = torch_like.linear(own["linear1"], y)
            with jax.named_scope("glu"):
                value, gate = jnp.split(y, 2, axis=-1)
                y = value * jax.nn.sigmoid(gate)
            with jax.named_scope("linear2"):
                y = torch_like.linear(own["linear2"], y)
            x = x + y
    with jax.named_scope("lstm"):
        x = torch_like.lstm(weights["lstm"], x)
    with jax.named_scope("bn"):
        x, statistics = torch_like.batch_norm(weights["bn"], x)
    with jax.named_scope("act"):
        x = jax.nn.gelu(x, approximate=False)
    with jax.named_scope("fc"):
        x = torch_like.linear(weights["fc"], x)
    return torch_like.cross_entropy(x, batch["label"]), {"bn": statistics}


def _ported_layer(own: Any, fault: str) -> dict[str, Any]:
    def norm(name: str) -> dict[str, Array]:
        return {"scale": own[name]["weight"], "bias": own[name]["bias"]}

    def dense(weight: Array, bias: Array) -> dict[str, Array]:
        return {"kernel": np.ascontiguousarray(weight.T), "bias": bias}

    attention = own["self_attn"]
    kernels, biases = np.split(attention["in_proj_weight"], 3), np.split(attention["in_proj_bias"], 3)
    parts = {
        name: dense(kernel, bias) for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True)
    }
    if fault == "another weight":
        parts["key"] = parts["query"]
    if fault == "not transposed":
        parts["value"]["kernel"] = np.ascontiguousarray(parts["value"]["kernel"].T)
    values, gates = (np.split(own["linear1"][name], 2) for name in ("weight", "bias"))
    wide = dense(values[0], gates[0]), dense(values[1], gates[1])
    return {
        "LayerNorm_0": norm("norm1"),
        "SelfAttention_0": parts | {"out": dense(**attention["out_proj"])},
        "LayerNorm_1": norm("norm2"),
        "GatedUnit_0": dict(zip(("gate", "value") if fault == "halves" else ("value", "gate"), wide, strict=True)),
        "Dense_0": dense(**own["linear2"]),
    }


def _ported(weights: Any, fault: str) -> dict[str, Any]:
    layers = {
        f"EncoderLayer_{number}": _ported_layer(weights[f"layers.{number}"], fault if number == 1 else "")
        for number in range(LAYERS)
    }
    lstm, norm = weights["lstm"], weights["bn"]
    cell: dict[str, Any] = {}
    for number, gate in enumerate("igfo" if fault == "gates" else "ifgo"):
        part = slice(number * WIDTH, (number + 1) * WIDTH)
        cell[f"i{gate}"] = {"kernel": np.ascontiguousarray(lstm["weight_ih"][part].T)}
        cell[f"h{gate}"] = {"kernel": np.ascontiguousarray(lstm["weight_hh"][part].T), "bias": lstm["bias"][part]}
    return {
        "Embed_0": {"embedding": weights["embed"]["weight"]},
        "positions": weights["embed"]["positions"],
        **layers,
        "LSTMCell_0": cell,
        "BatchNorm_0": {
            "scale": norm["weight"], "bias": norm["bias"], "mean": norm["running_mean"], "var": norm["running_var"],
        },
        "Dense_0": {"kernel": np.ascontiguousarray(weights["fc"]["weight"].T), "bias": weights["fc"]["bias"]},
    }  # fmt: skip


def _attention(weights: Any, x: Array, hidden: Array, fault: str) -> Array:
    def heads(name: str) -> Array:
        with jax.named_scope(name):
            y = flax_like.dense(weights[name], x)
            return y.reshape(*x.shape[:2], HEADS, -1)

    q, k, v = (heads(name) for name in ("query", "key", "value"))
    q = q if fault == "scale" else q / q.shape[-1] ** 0.5
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k)
    scores = scores if fault == "padding" else jnp.where(hidden[:, None, None], -1e9, scores)
    mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v)
    mixed = mixed.swapaxes(2, 3) if fault == "flattening" else mixed
    with jax.named_scope("out"):
        return flax_like.dense(weights["out"], mixed.reshape(x.shape))


def _layer(own: Any, x: Array, hidden: Array, fault: str) -> Array:
    with jax.named_scope("LayerNorm_0"):
        y = flax_like.layer_norm(own["LayerNorm_0"], x, epsilon=1e-2 if fault == "epsilon" else 1e-5)
    with jax.named_scope("SelfAttention_0"):
        y = _attention(own["SelfAttention_0"], y, hidden, fault)
    x = x + (flax_like.dropout(y) if fault == "dropout" else y)
    with jax.named_scope("LayerNorm_1"):
        y = flax_like.layer_norm(own["LayerNorm_1"], x)
    with jax.named_scope("GatedUnit_0"):
        with jax.named_scope("value"):
            value = flax_like.dense(own["GatedUnit_0"]["value"], y)
        with jax.named_scope("gate"):
            gate = flax_like.dense(own["GatedUnit_0"]["gate"], y)
        y = value * (jax.nn.silu(gate) if fault == "activation" else jax.nn.sigmoid(gate))
    with jax.named_scope("Dense_0"):
        return x + flax_like.dense(own["Dense_0"], y, bias=fault != "no bias")


def _cell(weights: Any, xs: Array) -> Array:
    h = c = jnp.zeros((xs.shape[0], WIDTH))
    for t in range(xs.shape[1]):
        i, f, g, o = (
            xs[:, t] @ weights[f"i{gate}"]["kernel"] + flax_like.dense(weights[f"h{gate}"], h) for gate in "ifgo"
        )
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h


def _candidate(fault: str) -> Program:
    def loss(weights: Any, batch: Any) -> Any:
        hidden = batch["tokens"] == 0
        with jax.named_scope("Embed_0"):
            x = weights["Embed_0"]["embedding"][batch["tokens"]]
        x = x if fault == "positions" else x + weights["positions"]
        for number in range(LAYERS):
            with jax.named_scope(f"EncoderLayer_{number}"):
                x = _layer(weights[f"EncoderLayer_{number}"], x, hidden, fault if number == 1 else "")
        with jax.named_scope("LSTMCell_0"):
            x = _cell(weights["LSTMCell_0"], x[:, ::-1] if fault == "pooling" else x)
        with jax.named_scope("BatchNorm_0"):
            momentum = 0.1 if fault == "momentum" else 0.9
            x, statistics = flax_like.batch_norm(weights["BatchNorm_0"], x, momentum=momentum)
        x = jax.nn.gelu(x, approximate=False)
        with jax.named_scope("Dense_0"):
            x = flax_like.dense(weights["Dense_0"], x)
        return torch_like.cross_entropy(x, batch["label"]), {"BatchNorm_0": statistics}

    return loss, _ported(_weights(), fault), _batch()


TEXT = Port(
    name="a text encoder",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("layers.1/norm1",),
        "padding": ("layers.1/self_attn", "layers.1/self_attn/out_proj"),
        "flattening": ("layers.1/self_attn", "layers.1/self_attn/out_proj"),
        "not transposed": ("EncoderLayer_1/SelfAttention_0/value",),
        "no bias": ("layers.1/linear2", "layers.1"),
        "momentum": ("bn/running_mean", "bn/running_var"),
        "pooling": ("lstm/step0.0", "lstm/step2"),
        "activation": ("layers.1/glu",),
        "another weight": ("EncoderLayer_1/SelfAttention_0/key",),
        "dropout": ("layers.1/self_attn", "layers.1/norm2"),
        "scale": ("layers.1/self_attn", "layers.1/self_attn/out_proj"),
        "halves": ("layers.1/glu",),
        "gates": ("lstm/step0.0", "lstm/step2"),
        "positions": ("embed",),
    },
)
