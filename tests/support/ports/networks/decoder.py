"""A decoder with rotary positions and grouped queries: fused against separate projections, a gated unit, RMS norms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

WIDTH, HEADS, GROUPS, HEAD, LENGTH, CLASSES = 8, 4, 2, 2, 5, 6
#: The number of rows of the fused projection: queries, then keys, then values.
ROWS = (HEADS * HEAD, GROUPS * HEAD, GROUPS * HEAD)

Array = Any


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(500 + seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, Any]:
    def layer(seed: int) -> dict[str, Any]:
        return {
            "input_layernorm": {"weight": 1 + _normal(seed, WIDTH) / 4},
            "qkv_proj": {"weight": _normal(seed + 1, sum(ROWS), WIDTH) / 2, "bias": _normal(seed + 2, sum(ROWS)) / 2},
            "o_proj": {"weight": _normal(seed + 3, WIDTH, WIDTH) / 3},
            "post_attention_layernorm": {"weight": 1 + _normal(seed + 4, WIDTH) / 4},
            "gate_up_proj": {"weight": _normal(seed + 5, 6 * WIDTH, WIDTH) / 3},
            "down_proj": {"weight": _normal(seed + 6, WIDTH, 3 * WIDTH) / 4, "bias": _normal(seed + 7, WIDTH) / 2},
        }

    return {
        "embed_tokens": {"weight": _normal(0, 13, WIDTH)},
        "layers": {"0": layer(10), "1": layer(20)},
        "norm": {"weight": 1 + _normal(1, WIDTH) / 4},
        "score": {"weight": _normal(2, CLASSES, WIDTH) / 2, "bias": _normal(3, CLASSES) / 4},
    }


def _batch() -> dict[str, Array]:
    tokens = np.random.default_rng(530).integers(0, 13, size=(3, LENGTH)).astype(np.int32)
    return {"tokens": tokens, "label": np.array([5, 0, 2], np.int32)}


def _rms_norm(scale: Array, x: Array, epsilon: float = 1e-6) -> Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon) * scale


def _rotated(x: Array, positions: Array) -> Array:
    """Heads with the first half of their elements rotated against the second, `[batch, time, heads, head]`."""
    angles = positions[:, None] / 100.0 ** (np.arange(HEAD // 2, dtype=np.float32) * 2 / HEAD)
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    one, other = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def _attended(q: Array, k: Array, v: Array, offset: int = 0) -> Array:
    k, v = (jnp.repeat(each, HEADS // GROUPS, axis=2) for each in (k, v))
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / HEAD**0.5
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool), offset)
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(jnp.where(seen, scores, -1e9)), v)


def _reference(weights: Any, batch: Any) -> Any:
    positions = jnp.arange(LENGTH, dtype=jnp.float32)
    with jax.named_scope("embed_tokens"):
        x = weights["embed_tokens"]["weight"][batch["tokens"]]
    for number in ("0", "1"):
        own = weights["layers"][number]
        with jax.named_scope(f"layers.{number}"):
            with jax.named_scope("input_layernorm"):
                y = _rms_norm(own["input_layernorm"]["weight"], x)
            with jax.named_scope("self_attn"):
                with jax.named_scope("qkv_proj"):
                    y = torch_like.linear(own["qkv_proj"], y)
                q, k, v = jnp.split(y, np.cumsum(ROWS)[:2], axis=-1)
                q, k, v = (each.reshape(*x.shape[:2], -1, HEAD) for each in (q, k, v))
                y = _attended(_rotated(q, positions), _rotated(k, positions), v).reshape(x.shape)
                with jax.named_scope("o_proj"):
                    y = y @ own["o_proj"]["weight"].T
            x = x + y
            with jax.named_scope("post_attention_layernorm"):
                y = _rms_norm(own["post_attention_layernorm"]["weight"], x)
            with jax.named_scope("mlp"):
                with jax.named_scope("gate_up_proj"):
                    y = y @ own["gate_up_proj"]["weight"].T
                gate, up = jnp.split(y, 2, axis=-1)
                with jax.named_scope("act_fn"):
                    gate = jax.nn.silu(gate)
                with jax.named_scope("down_proj"):
                    y = torch_like.linear(own["down_proj"], gate * up)
            x = x + y
    with jax.named_scope("norm"):
        x = _rms_norm(weights["norm"]["weight"], x)
    with jax.named_scope("score"):
        x = torch_like.linear(weights["score"], x.mean(1))
    return torch_like.cross_entropy(x, batch["label"])


def _ported_layer(own: Any, fault: str) -> dict[str, Any]:
    kernels, biases = (np.split(own["qkv_proj"][name], np.cumsum(ROWS)[:2]) for name in ("weight", "bias"))
    attention = {
        name: {"kernel": np.ascontiguousarray(kernel.T), "bias": bias}
        for name, kernel, bias in zip(("q", "k", "v"), kernels, biases, strict=True)
    }
    if fault == "another weight":
        attention["v"]["kernel"] = attention["k"]["kernel"]
    out = own["o_proj"]["weight"] if fault == "not flipped" else own["o_proj"]["weight"].T
    gate, up = np.split(own["gate_up_proj"]["weight"], 2)
    return {
        "pre_attention_norm": {"scale": own["input_layernorm"]["weight"]},
        "attn": attention | {"out": {"kernel": np.ascontiguousarray(out)}},
        "pre_ffw_norm": {"scale": own["post_attention_layernorm"]["weight"]},
        "ffw": {
            "gate": {"kernel": np.ascontiguousarray(gate.T)}, "up": {"kernel": np.ascontiguousarray(up.T)},
            "down": {"kernel": np.ascontiguousarray(own["down_proj"]["weight"].T), "bias": own["down_proj"]["bias"]},
        },
    }  # fmt: skip


def _block(own: Any, x: Array, fault: str) -> Array:
    positions = jnp.arange(LENGTH, dtype=jnp.float32) + (1 if fault == "momentum" else 0)
    with jax.named_scope("pre_attention_norm"):
        y = _rms_norm(own["pre_attention_norm"]["scale"], x, 1e-2 if fault == "epsilon" else 1e-6)
    with jax.named_scope("attn"):
        q, k, v = (flax_like.dense(own["attn"][name], y).reshape(*x.shape[:2], -1, HEAD) for name in "qkv")
        q, k = _rotated(q, positions), _rotated(k, positions - (1 if fault == "momentum" else 0))
        y = _attended(q, k, v, 1 if fault == "padding" else 0)
        y = y.swapaxes(2, 3) if fault == "flattening" else y
        y = y.reshape(x.shape) @ own["attn"]["out"]["kernel"]
    x = x + (flax_like.dropout(y) if fault == "dropout" else y)
    with jax.named_scope("pre_ffw_norm"):
        y = _rms_norm(own["pre_ffw_norm"]["scale"], x)
    with jax.named_scope("ffw"):
        gate = y @ own["ffw"]["gate"]["kernel"]
        gate = jax.nn.gelu(gate) if fault == "activation" else jax.nn.silu(gate)
        y = flax_like.dense(own["ffw"]["down"], gate * (y @ own["ffw"]["up"]["kernel"]), bias=fault != "no bias")
    return x + y


def _candidate(fault: str) -> Program:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("embedder"):
            x = weights["embedder"]["input_embedding"][batch["tokens"]]
        for number in range(2):
            with jax.named_scope(f"layer_{number}"):
                x = _block(weights[f"layer_{number}"], x, fault if number == 1 else "")
        with jax.named_scope("final_norm"):
            x = _rms_norm(weights["final_norm"]["scale"], x)
        with jax.named_scope("head"):
            x = x[:, -1] if fault == "pooling" else x.mean(1)
            x = flax_like.dense(weights["head"], x)
        return torch_like.cross_entropy(x, batch["label"])

    own = _weights()
    layers = {f"layer_{n}": _ported_layer(own["layers"][str(n)], fault if n == 1 else "") for n in range(2)}
    ported = {
        "embedder": {"input_embedding": own["embed_tokens"]["weight"]},
        **layers,
        "final_norm": {"scale": own["norm"]["weight"]},
        "head": {"kernel": np.ascontiguousarray(own["score"]["weight"].T), "bias": own["score"]["bias"]},
    }
    return loss, ported, _batch()


#: The names of the attention of the last layer, which is one layer in the candidate.
_ATTENTION = ("layers.1/self_attn", "layers.1/self_attn/o_proj")

DECODER = Port(
    name="a decoder with grouped queries",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("layers.1/input_layernorm",),
        "padding": _ATTENTION,
        "flattening": _ATTENTION,
        "not flipped": _ATTENTION,
        "no bias": ("layers.1/mlp", "layers.1/mlp/down_proj"),
        "momentum": _ATTENTION,
        "pooling": ("score",),
        "activation": ("layers.1/mlp/act_fn", "layers.1/mlp", "layers.1/mlp/down_proj"),
        "another weight": ("layers.1/self_attn/qkv_proj",),
        "dropout": ("layers.1/post_attention_layernorm",),
    },
)
