"""A mixture of experts: a layer for each expert, one after the other, against layers of all experts at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports.port import Port, Program

WIDTH, INNER, EXPERTS, BLOCKS, WORDS, POSITIONS = 12, 20, 3, 2, 11, 24

Array = Any
Weights = Mapping[str, Any]


def _weights() -> dict[str, Array]:
    draw = np.random.default_rng(1100).normal

    def kernel(*shape: int) -> Array:
        return (draw(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    def vector(size: int, middle: float) -> Array:
        return (middle + 0.3 * draw(size=size)).astype(np.float32)

    def norm(name: str) -> dict[str, Array]:
        return {f"{name}.weight": vector(WIDTH, 1.0), f"{name}.bias": vector(WIDTH, 0.0)}

    found = {"embed.weight": kernel(WORDS, WIDTH), "head.weight": kernel(WORDS, WIDTH), **norm("norm")}
    for number in range(BLOCKS):
        own = f"blocks.{number}"
        found |= norm(f"{own}.norm") | {f"{own}.moe.gate.weight": kernel(EXPERTS, WIDTH)}
        for expert in range(EXPERTS):
            of_expert = f"{own}.moe.experts.{expert}"
            found[f"{of_expert}.w1.weight"], found[f"{of_expert}.w1.bias"] = kernel(INNER, WIDTH), vector(INNER, 0.0)
            found[f"{of_expert}.w2.weight"], found[f"{of_expert}.w2.bias"] = kernel(WIDTH, INNER), vector(WIDTH, 0.0)
    return found


def _tokens() -> Array:
    return np.random.default_rng(1101).integers(0, WORDS, (2, POSITIONS)).astype(np.int32)


def _loss_of(logits: Array, targets: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], -1).mean()


def _reference(weights: Weights, tokens: Array) -> Array:
    def norm(name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def dense(name: str, x: Array) -> Array:
        with jax.named_scope(name.rpartition(".")[2]):
            return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    def mixture(name: str, x: Array) -> Array:
        logits = dense(f"{name}.gate", x)
        largest, chosen = jax.lax.top_k(jax.nn.softmax(logits), 2)
        largest = largest / largest.sum(-1, keepdims=True)
        y = jnp.zeros_like(x)
        for expert in range(EXPERTS):
            with jax.named_scope(f"experts.{expert}"):
                own = f"{name}.experts.{expert}"
                hidden = dense(f"{own}.w1", x)
                with jax.named_scope("act"):
                    hidden = jax.nn.silu(hidden)
                made = dense(f"{own}.w2", hidden)
            y += made * jnp.where(chosen == expert, largest, 0).sum(-1, keepdims=True)
        return y

    with jax.named_scope("embed"):
        x = weights["embed.weight"][tokens[0]]
    for number in range(BLOCKS):
        with jax.named_scope(f"blocks.{number}"):
            with jax.named_scope("norm"):
                y = norm(f"blocks.{number}.norm", x)
            with jax.named_scope("moe"):
                y = mixture(f"blocks.{number}.moe", y)
            x += y
    with jax.named_scope("norm"):
        x = norm("norm", x)
    return _loss_of(dense("head", x), tokens[1])


def _ported(weights: Weights, fault: str) -> dict[str, Any]:
    def block(number: int) -> dict[str, Any]:
        own = f"blocks.{number}"

        def experts(name: str) -> Array:
            return np.stack([weights[f"{own}.moe.experts.{expert}.{name}"].T for expert in range(EXPERTS)])

        of_router = "blocks.0" if fault == "another weight" else own
        up = experts("w1.weight")
        if fault == "experts swapped" and number == 1:
            up[:2] = up[1::-1].copy()
        return {
            "norm": {"scale": weights[f"{own}.norm.weight"], "shift": weights[f"{own}.norm.bias"]},
            "router": weights[f"{of_router}.moe.gate.weight"].T.copy(),
            "up": {"kernel": up, "bias": experts("w1.bias")},
            "down": {"kernel": experts("w2.weight"), "bias": experts("w2.bias")},
        }

    return {
        "words": weights["embed.weight"],
        "final": {"scale": weights["norm.weight"], "shift": weights["norm.bias"]},
        "logits": weights["head.weight"].T.copy(),
        **{f"layer{number}": block(number) for number in range(BLOCKS)},
    }


def _norm(own: Weights, x: Array, epsilon: float = 1e-5) -> Array:
    scaled = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + epsilon)
    return scaled * own["scale"] + own["shift"]


def _mixture(own: Weights, x: Array, fault: str) -> Array:
    with jax.named_scope("route"):
        logits = x @ own["router"]
    largest, chosen = jax.lax.top_k(jax.nn.softmax(logits), 2)
    if fault != "not renormalised":
        largest = largest / largest.sum(-1, keepdims=True)
    largest = largest * jnp.array([1.0, 0.0]) if fault == "top one" else largest
    largest = jax.lax.stop_gradient(largest) if fault == "stop" else largest
    shares = (jax.nn.one_hot(chosen, EXPERTS) * largest[..., None]).sum(1)
    with jax.named_scope("mix"):
        hidden = jnp.einsum("td,edh->eth", x, own["up"]["kernel"]) + own["up"]["bias"][:, None]
        hidden = jax.nn.gelu(hidden) if fault == "activation" else jax.nn.silu(hidden)
        hidden = hidden * _KEPT if fault == "dropout" else hidden
        y = jnp.einsum("eth,ehd->etd", hidden, own["down"]["kernel"])
        y += 0 if fault == "no bias" else own["down"]["bias"][:, None]
        return jnp.einsum("etd,te->td", y, shares)


_KEPT = (np.random.default_rng(1102).random((EXPERTS, POSITIONS, INNER)) < 0.7).astype(np.float32) / np.float32(0.7)


def _candidate(fault: str) -> Program:
    def loss(weights: Any, tokens: Any) -> Any:
        with jax.named_scope("words"):
            x = weights["words"][tokens[0]]
        for number in range(BLOCKS):
            own, its = weights[f"layer{number}"], fault if number == 1 else ""
            with jax.named_scope(f"layer{number}"):
                with jax.named_scope("before"):
                    y = x if its == "no norm" else _norm(own["norm"], x, 1e-2 if its == "epsilon" else 1e-5)
                with jax.named_scope("sparse"):
                    y = _mixture(own, y, its)
                x = y if its == "residual" else x + y
        with jax.named_scope("final"):
            x = _norm(weights["final"], x)
        with jax.named_scope("logits"):
            x = x @ weights["logits"]
        return _loss_of(x, tokens[1])

    return loss, _ported(_weights(), fault), _tokens()


_GATE = tuple(f"blocks.1/moe{each}" for each in ("", "/gate"))
_MIX = ("blocks.1/moe", *(f"blocks.1/moe/experts.{n}/{each}" for n in range(EXPERTS) for each in ("w1", "act", "w2")))
MIXTURE = Port(
    name="a mixture of experts",
    reference=(_reference, _weights(), _tokens()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("blocks.1/norm",),
        "no norm": ("blocks.1/norm", *_GATE),
        "not renormalised": _GATE,
        "top one": _GATE,
        "activation": _MIX,
        "dropout": _MIX,
        "no bias": _MIX,
        "experts swapped": _MIX,
        "another weight": ("blocks.1/moe/gate",),
        "residual": ("blocks.1",),
        "stop": _GATE,
    },
)
