"""A vision transformer: packed against separate projections, a convolution of patches, a batch norm in the head."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

#: The width of the tokens, which is also their number.
WIDTH = 16

Array = Any


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(200 + seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, Any]:
    def norm(seed: int) -> dict[str, Array]:
        return {"weight": 1 + _normal(seed, WIDTH) / 4, "bias": _normal(seed + 1, WIDTH) / 4}

    def linear(seed: int, wide: int, narrow: int) -> dict[str, Array]:
        return {"weight": _normal(seed, wide, narrow) / narrow**0.5, "bias": _normal(seed + 1, wide) / 4}

    blocks = {
        f"blocks.{number}": {
            "norm1": norm(seed),
            "attn": {
                "in_proj_weight": _normal(seed + 2, 3 * WIDTH, WIDTH) / 4,
                "in_proj_bias": _normal(seed + 3, 3 * WIDTH) / 4,
                "out_proj_weight": _normal(seed + 4, WIDTH, WIDTH) / 4,
            },
            "norm2": norm(seed + 5),
            "fc1": linear(seed + 7, 2 * WIDTH, WIDTH),
            "fc2": linear(seed + 9, WIDTH, 2 * WIDTH),
        }
        for number, seed in ((0, 20), (1, 40))
    }
    statistics = {"running_mean": _normal(6, 2 * WIDTH), "running_var": 1 + np.abs(_normal(7, 2 * WIDTH))}
    return {
        "patches": {"weight": _normal(0, WIDTH, 3, 2, 2) / 4, "bias": _normal(1, WIDTH) / 4},
        **blocks,
        "stem": {"weight": _normal(2, WIDTH // 8, WIDTH, 3, 3) / 9, "bias": _normal(3, WIDTH // 8)},
        "norm": {"weight": 1 + _normal(4, 32) / 4, "bias": _normal(5, 32) / 4, **statistics},
        "head": {"weight": _normal(8, 5, 32) / 5, "bias": _normal(9, 5)},
    }


def _batch() -> dict[str, Array]:
    return {"image": _normal(30, 6, 3, 8, 8), "label": np.array([3, 1, 4, 0, 2, 2], np.int32)}


def _reference(weights: Any, batch: Any) -> Any:
    with jax.named_scope("patches"):
        x = torch_like.conv(weights["patches"], batch["image"], padding=0, stride=2)
    with jax.named_scope("tokens"):
        x = x.reshape(*x.shape[:2], -1).swapaxes(1, 2)
    for number in range(2):
        own = weights[f"blocks.{number}"]
        with jax.named_scope(f"blocks.{number}"):
            with jax.named_scope("norm1"):
                y = torch_like.layer_norm(own["norm1"], x)
            with jax.named_scope("attn"):
                y = torch_like.attention(own["attn"], y, 4)
            x = x + y
            with jax.named_scope("norm2"):
                y = torch_like.layer_norm(own["norm2"], x)
            with jax.named_scope("fc1"):
                y = torch_like.linear(own["fc1"], y)
            with jax.named_scope("act"):
                y = jax.nn.gelu(y, approximate=False)
            with jax.named_scope("fc2"):
                y = torch_like.linear(own["fc2"], y)
            x = x + y
    with jax.named_scope("image"):
        x = x.swapaxes(1, 2).reshape(-1, WIDTH, 4, 4)
    with jax.named_scope("stem"):
        x = torch_like.conv(weights["stem"], x)
    with jax.named_scope("flatten"):
        x = x.reshape(x.shape[0], -1)
    with jax.named_scope("norm"):
        x, statistics = torch_like.batch_norm(weights["norm"], x)
    with jax.named_scope("head"):
        x = torch_like.linear(weights["head"], x)
    return torch_like.cross_entropy(x, batch["label"]), {"norm": statistics}


def _ported_block(own: Any, fault: str) -> dict[str, Any]:
    def norm(name: str) -> dict[str, Array]:
        return {"scale": own[name]["weight"], "bias": own[name]["bias"]}

    def dense(name: str) -> dict[str, Array]:
        return {"kernel": np.ascontiguousarray(own[name]["weight"].T), "bias": own[name]["bias"]}

    kernels, biases = np.split(own["attn"]["in_proj_weight"], 3), np.split(own["attn"]["in_proj_bias"], 3)
    parts = {
        name: {"kernel": np.ascontiguousarray(kernel.T), "bias": bias}
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True)
    }
    if fault == "another weight":
        parts["key"]["kernel"] = parts["query"]["kernel"]
    parts["out"] = {"kernel": np.ascontiguousarray(own["attn"]["out_proj_weight"].T)}
    return {
        "LayerNorm_0": norm("norm1"), "MultiHeadAttention_0": parts, "LayerNorm_1": norm("norm2"),
        "Dense_0": dense("fc1"), "Dense_1": dense("fc2"),
    }  # fmt: skip


def _ported(weights: Any, fault: str) -> dict[str, Any]:
    def conv(name: str) -> dict[str, Array]:
        kernel = weights[name]["weight"].transpose(2, 3, 1, 0)
        return {"kernel": np.ascontiguousarray(kernel), "bias": weights[name]["bias"]}

    rows = np.arange(32)
    if fault != "flattening":
        rows = rows.reshape(2, 4, 4).transpose(1, 2, 0).reshape(-1)
    norm = {new: weights["norm"][old][rows] for new, old in (("scale", "weight"), ("bias", "bias"))}
    norm |= {name: weights["norm"][f"running_{name}"][rows] for name in ("mean", "var")}
    blocks = {
        f"Block_{number}": _ported_block(weights[f"blocks.{number}"], fault if number == 1 else "")
        for number in range(2)
    }
    head = {"kernel": np.ascontiguousarray(weights["head"]["weight"].T[rows]), "bias": weights["head"]["bias"]}
    return {"Conv_0": conv("patches"), **blocks, "Conv_1": conv("stem"), "BatchNorm_0": norm, "Dense_0": head}


def _block(own: Any, x: Any, fault: str) -> Any:
    with jax.named_scope("LayerNorm_0"):
        y = flax_like.layer_norm(own["LayerNorm_0"], x, epsilon=1e-3 if fault == "epsilon" else 1e-5)
    with jax.named_scope("MultiHeadAttention_0"):
        y = flax_like.attention(own["MultiHeadAttention_0"], y, 4)
    x = x + (flax_like.dropout(y) if fault == "dropout" else y)
    with jax.named_scope("LayerNorm_1"):
        y = flax_like.layer_norm(own["LayerNorm_1"], x)
    with jax.named_scope("Dense_0"):
        y = flax_like.dense(own["Dense_0"], y)
    y = jax.nn.gelu(y, approximate=fault == "activation")
    with jax.named_scope("Dense_1"):
        y = flax_like.dense(own["Dense_1"], y, bias=fault != "no bias")
    return x + y


def _candidate(fault: str) -> Program:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Conv_0"):
            patches = weights["Conv_0"]
            if fault == "not flipped":
                patches = patches | {"kernel": jnp.flip(patches["kernel"], (0, 1))}
            x = flax_like.conv(patches, batch["image"], stride=2)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for number in range(2):
            with jax.named_scope(f"Block_{number}"):
                x = _block(weights[f"Block_{number}"], x, fault if number == 1 else "")
        x = x.reshape(-1, 4, 4, WIDTH)
        if fault == "pooling":
            x = jnp.broadcast_to(x.mean((1, 2), keepdims=True), x.shape)
        with jax.named_scope("Conv_1"):
            x = flax_like.conv(weights["Conv_1"], x, padding=[(2, 0), (2, 0)] if fault == "padding" else "SAME")
        x = x.reshape(x.shape[0], -1)
        with jax.named_scope("BatchNorm_0"):
            momentum = 0.1 if fault == "momentum" else 0.9
            x, statistics = flax_like.batch_norm(weights["BatchNorm_0"], x, momentum=momentum)
        with jax.named_scope("Dense_0"):
            x = flax_like.dense(weights["Dense_0"], x)
        return torch_like.cross_entropy(x, batch["label"]), {"BatchNorm_0": statistics}

    batch = _batch()
    return loss, _ported(_weights(), fault), batch | {"image": batch["image"].transpose(0, 2, 3, 1)}


VISION = Port(
    name="a vision transformer",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("blocks.1/norm1",),
        "padding": ("stem",),
        "flattening": ("flatten", "norm"),
        "not flipped": ("patches",),
        "no bias": ("blocks.1/fc2",),
        "momentum": ("norm/running_mean", "norm/running_var"),
        "pooling": ("stem", "image"),
        "activation": ("blocks.1/act", "blocks.1/fc2"),
        "another weight": ("blocks.1/attn",),
        "dropout": ("blocks.1/norm2",),
    },
)
