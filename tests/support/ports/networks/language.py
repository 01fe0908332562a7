"""A language model: rotary positions, heads that share keys and values, root mean squares, gated layers.

The port packs the keys and values of a layer in one kernel, with an axis for the heads, and the two kernels of its gate
in another, and has one scope for all of attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports.port import Port, Program

#: Queries and keys have `HEADS` and `GROUPS` heads of `SIZE` features.
WIDTH, HEADS, GROUPS, SIZE, INNER = 16, 4, 2, 4, 24
LAYERS, WORDS, TIME = 2, 17, 6

Array = Any
Weights = Mapping[str, Any]


def _weights() -> dict[str, Array]:
    draw = np.random.default_rng(900).normal

    def kernel(*shape: int) -> Array:
        return (draw(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    def scale() -> Array:
        return (1 + 0.3 * draw(size=WIDTH)).astype(np.float32)

    found = {"model.embed_tokens": kernel(WORDS, WIDTH), "model.norm": scale(), "lm_head": kernel(WORDS, WIDTH)}
    for number in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * SIZE, WIDTH), "self_attn.k_proj": (GROUPS * SIZE, WIDTH),
            "self_attn.v_proj": (GROUPS * SIZE, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * SIZE),
            "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER),
        }  # fmt: skip
        own = {name: kernel(*shape) for name, shape in shapes.items()}
        own |= {"input_layernorm": scale(), "post_attention_layernorm": scale()}
        found |= {f"model.layers.{number}.{name}": value for name, value in own.items()}
    return {f"{name}.weight": value for name, value in found.items()}


def _tokens() -> Array:
    return np.random.default_rng(901).integers(0, WORDS, (3, TIME)).astype(np.int32)


def _loss_of(logits: Array, tokens: Array) -> Array:
    shares = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.take_along_axis(shares, tokens[:, 1:, None], -1).mean()


def _reference(weights: Weights, tokens: Array) -> Array:
    def dense(name: str, x: Array) -> Array:
        with jax.named_scope(name.rpartition(".")[2]):
            return x @ weights[f"{name}.weight"].T

    def norm(name: str, x: Array) -> Array:
        with jax.named_scope(name.rpartition(".")[2]):
            return weights[f"{name}.weight"] * (x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6))

    def heads(x: Array) -> Array:
        return x.reshape(*x.shape[:2], -1, SIZE).swapaxes(1, 2)

    angles = np.arange(TIME)[:, None] / 10000 ** (np.arange(0, SIZE, 2) / SIZE)
    cosines, sines = (np.concatenate([each, each], -1).astype(np.float32) for each in (np.cos(angles), np.sin(angles)))

    def turned(x: Array) -> Array:
        one, other = jnp.split(x, 2, -1)
        return x * cosines + jnp.concatenate([-other, one], -1) * sines

    with jax.named_scope("model"):
        with jax.named_scope("embed_tokens"):
            x = weights["model.embed_tokens.weight"][tokens]
        for number in range(LAYERS):
            own = f"model.layers.{number}"
            with jax.named_scope(f"layers.{number}"):
                y = norm(f"{own}.input_layernorm", x)
                with jax.named_scope("self_attn"):
                    q, k, v = (heads(dense(f"{own}.self_attn.{each}_proj", y)) for each in "qkv")
                    q, k = turned(q), turned(k)
                    k, v = jnp.repeat(k, HEADS // GROUPS, 1), jnp.repeat(v, HEADS // GROUPS, 1)
                    scores = q @ k.swapaxes(-1, -2) / SIZE**0.5
                    seen = np.tril(np.ones((TIME, TIME), bool))
                    mixed = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v
                    mixed = mixed.swapaxes(1, 2).reshape(*y.shape[:2], -1)
                    x += dense(f"{own}.self_attn.o_proj", mixed)
                y = norm(f"{own}.post_attention_layernorm", x)
                with jax.named_scope("mlp"):
                    y = jax.nn.silu(dense(f"{own}.mlp.gate_proj", y)) * dense(f"{own}.mlp.up_proj", y)
                    x += dense(f"{own}.mlp.down_proj", y)
        x = norm("model.norm", x)
    return _loss_of(dense("lm_head", x), tokens)


def _ported(weights: Weights, fault: str) -> dict[str, Any]:
    def kernel(number: int, name: str, *shape: int) -> Array:
        found = weights[f"model.layers.{number}.{name}.weight"].T
        return np.array(found.reshape(shape) if shape else found)

    def layer(number: int) -> dict[str, Any]:
        of_out = 1 if fault == "another weight" else number
        keys, values = (kernel(number, f"self_attn.{each}_proj", WIDTH, GROUPS, SIZE) for each in "kv")
        attention = {
            "q": kernel(number, "self_attn.q_proj", WIDTH, HEADS, SIZE),
            "kv": np.stack([keys, values]),
            "out": kernel(of_out, "self_attn.o_proj", HEADS, SIZE, WIDTH),
        }
        gates = np.stack([kernel(number, f"mlp.{each}_proj") for each in ("gate", "up")])
        return {
            "before": kernel(number, "input_layernorm"), "behind": kernel(number, "post_attention_layernorm"),
            "attention": attention, "gated": {"in": gates, "out": kernel(number, "mlp.down_proj")},
        }  # fmt: skip

    names = {"embedder": "model.embed_tokens", "final": "model.norm", "head": "lm_head"}
    rest = {name: np.array(weights[f"{of_ref}.weight"]) for name, of_ref in names.items()}
    return rest | {f"block{number}": layer(number) for number in range(LAYERS)}


def _norm(scale: Array, x: Array, epsilon: float = 1e-6) -> Array:
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon) * scale


def _turned(x: Array, fault: str) -> Array:
    """Returns `[batch, time, head, feature]` with pairs of features turned by angles of their positions."""
    base = 500.0 if fault == "base" else 10000.0
    angles = np.arange(TIME)[:, None] * base ** (-np.arange(0, SIZE, 2) / SIZE)
    cosine, sine = (jnp.asarray(each, jnp.float32)[None, :, None] for each in (np.cos(angles), np.sin(angles)))
    one, other = (x[..., ::2], x[..., 1::2]) if fault == "interleaved" else jnp.split(x, 2, -1)
    turned = one * cosine - other * sine, other * cosine + one * sine
    return jnp.stack(turned, -1).reshape(x.shape) if fault == "interleaved" else jnp.concatenate(turned, -1)


def _attention(own: Weights, x: Array, fault: str) -> Array:
    q, (k, v) = jnp.einsum("btd,dhk->bthk", x, own["q"]), jnp.einsum("btd,cdhk->cbthk", x, own["kv"])
    q, k = _turned(q, fault), _turned(k, fault)
    if fault == "stop":
        v = jax.lax.stop_gradient(v)
    shape = (HEADS // GROUPS, GROUPS) if fault == "tiled" else (GROUPS, HEADS // GROUPS)
    q = q.reshape(*q.shape[:2], *shape, SIZE)
    q = q.swapaxes(2, 3) if fault == "tiled" else q
    scores = jnp.einsum("btgrk,bsgk->bgrts", q, k) * (WIDTH if fault == "scale" else SIZE) ** -0.5
    last = np.arange(TIME)[:, None] + (fault == "mask")
    shares = jax.nn.softmax(jnp.where(last >= np.arange(TIME), scores, -1e30), -2 if fault == "axis" else -1)
    mixed = jnp.einsum("bgrts,bsgk->btgrk", shares, v)
    mixed = mixed.swapaxes(2, 3) if fault == "tiled" else mixed
    return jnp.einsum("bthk,hkd->btd", mixed.reshape(*mixed.shape[:2], HEADS, SIZE), own["out"])


def _gated(own: Weights, x: Array, fault: str) -> Array:
    one, other = x @ own["in"][0], x @ own["in"][1]
    one, other = (other, one) if fault == "halves" else (one, other)
    return ((jax.nn.gelu(one) if fault == "activation" else jax.nn.silu(one)) * other) @ own["out"]


def _candidate(fault: str) -> Program:
    def loss(weights: Any, tokens: Any) -> Any:
        x = weights["embedder"][tokens] * (WIDTH**0.5 if fault == "scaled embedding" else 1)
        for number in range(LAYERS):
            own, its = weights[f"block{number}"], fault if number == 1 else ""
            with jax.named_scope(f"block{number}"):
                with jax.named_scope("before"):
                    y = _norm(own["before"], x, 1e-2 if its == "epsilon" else 1e-6)
                with jax.named_scope("attention"):
                    mixed = _attention(own["attention"], y, its)
                x = (y if its == "residual" else x) + mixed
                with jax.named_scope("behind"):
                    y = _norm(own["behind"], x)
                with jax.named_scope("gated"):
                    y = _gated(own["gated"], y, its)
                x += y
        with jax.named_scope("final"):
            x = _norm(1.0 if fault == "no scale" else weights["final"], x)
        return _loss_of(x @ weights["head"].T, tokens)

    return loss, _ported(_weights(), fault), _tokens()


_ATTENTION = ("model/layers.1/self_attn", "model/layers.1/self_attn/o_proj")
_GATED = tuple(f"model/layers.1/mlp{each}" for each in ("", "/gate_proj", "/up_proj", "/down_proj"))
LANGUAGE = Port(
    name="a language model",
    reference=(_reference, _weights(), _tokens()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("model/layers.1/input_layernorm",),
        "activation": _GATED,
        "another weight": ("model/layers.0/self_attn/o_proj",),
        "scale": _ATTENTION,
        "halves": _GATED,
        "interleaved": _ATTENTION,
        "base": _ATTENTION,
        "tiled": _ATTENTION,
        "mask": _ATTENTION,
        "axis": _ATTENTION,
        "stop": ("model/layers.1/self_attn/v_proj",),
        "residual": ("model/layers.1/post_attention_layernorm", "model/layers.1/self_attn"),
        "scaled embedding": ("model/embed_tokens", "model/layers.0/self_attn"),
        "no scale": ("model/norm",),
    },
)
