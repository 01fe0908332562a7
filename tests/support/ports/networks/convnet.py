"""A convolutional network under equal names, as wide as its images are high: no shape tells which axis is which."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

#: The number of channels, and the height and width of the images.
WIDTH = 6

Array = Any


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, dict[str, Array]]:
    def conv(seed: int) -> dict[str, Array]:
        return {"weight": _normal(seed, WIDTH, WIDTH, 3, 3) / 7, "bias": _normal(seed + 1, WIDTH) / 4}

    return {
        "conv1": conv(0),
        "norm1": {
            "weight": 1 + _normal(2, WIDTH) / 4, "bias": _normal(3, WIDTH) / 4,
            "running_mean": _normal(4, WIDTH) / 4, "running_var": 1 + np.abs(_normal(5, WIDTH)),
        },
        "conv2": conv(6),
        "conv3": conv(8),
        "fc1": {"weight": _normal(10, 12, WIDTH * 9) / 6, "bias": _normal(11, 12) / 4},
        "fc2": {"weight": _normal(12, 12, 12) / 4, "bias": _normal(13, 12) / 4},
    }  # fmt: skip


def _batch() -> dict[str, Array]:
    return {"image": _normal(20, 4, WIDTH, WIDTH, WIDTH), "label": np.array([3, 1, 11, 0], np.int32)}


def _reference(weights: Any, batch: Any) -> Any:
    x = batch["image"]
    with jax.named_scope("conv1"):
        x = torch_like.conv(weights["conv1"], x)
    with jax.named_scope("norm1"):
        x, statistics = torch_like.batch_norm(weights["norm1"], x)
    with jax.named_scope("act1"):
        x = jax.nn.gelu(x, approximate=False)
    with jax.named_scope("conv2"):  # a convolution, where the frameworks correlate
        flipped = {"weight": jnp.flip(weights["conv2"]["weight"], (2, 3)), "bias": weights["conv2"]["bias"]}
        x = torch_like.conv(flipped, x)
    with jax.named_scope("pool"):
        x = torch_like.max_pool(x)
    with jax.named_scope("conv3"):
        x = torch_like.conv(weights["conv3"], x)
    with jax.named_scope("flatten"):
        x = x.reshape(x.shape[0], -1)
    with jax.named_scope("fc1"):
        x = jax.nn.relu(torch_like.linear(weights["fc1"], x))
    with jax.named_scope("fc2"):
        x = torch_like.linear(weights["fc2"], x)
    return torch_like.cross_entropy(x, batch["label"]), {"norm1": statistics}


def _ported(weights: dict[str, dict[str, Array]], fault: str) -> dict[str, dict[str, Array]]:
    kernels = {name: weights[name]["weight"].transpose(2, 3, 1, 0) for name in ("conv1", "conv2", "conv3")}
    if fault != "not flipped":
        kernels["conv2"] = kernels["conv2"][::-1, ::-1]
    rows = weights["fc1"]["weight"]
    if fault != "flattening":
        rows = rows.reshape(12, WIDTH, 3, 3).transpose(0, 2, 3, 1).reshape(12, -1)
    norm = weights["norm1"]
    return {
        **{name: {"kernel": np.ascontiguousarray(kernels[name]), "bias": weights[name]["bias"]} for name in kernels},
        "norm1": {
            "scale": norm["weight"], "bias": norm["bias"], "mean": norm["running_mean"], "var": norm["running_var"],
        },
        "fc1": {"kernel": np.ascontiguousarray(rows.T), "bias": weights["fc1"]["bias"]},
        "fc2": {"kernel": np.ascontiguousarray(weights["fc2"]["weight"].T), "bias": weights["fc2"]["bias"]},
    }  # fmt: skip


def _candidate(fault: str) -> Program:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["image"]
        with jax.named_scope("conv1"):
            x = flax_like.conv(weights["conv1"], x)
        with jax.named_scope("norm1"):
            epsilon, momentum = 1e-3 if fault == "epsilon" else 1e-5, 0.1 if fault == "momentum" else 0.9
            x, statistics = flax_like.batch_norm(weights["norm1"], x, epsilon=epsilon, momentum=momentum)
        with jax.named_scope("act1"):
            x = jax.nn.gelu(x, approximate=fault == "activation")
        with jax.named_scope("conv2"):
            x = flax_like.conv(weights["conv2"], x, padding=[(0, 2), (0, 2)] if fault == "padding" else "SAME")
        with jax.named_scope("pool"):
            x = flax_like.pool(x, "mean" if fault == "pooling" else "max")
        with jax.named_scope("conv3"):
            x = flax_like.conv(weights["conv2" if fault == "another weight" else "conv3"], x, bias=fault != "no bias")
        if fault == "dropout":
            with jax.named_scope("dropout"):
                x = flax_like.dropout(x)
        with jax.named_scope("flatten"):
            x = x.reshape(x.shape[0], -1)
        with jax.named_scope("fc1"):
            x = jax.nn.relu(flax_like.dense(weights["fc1"], x))
        with jax.named_scope("fc2"):
            x = flax_like.dense(weights["fc2"], x)
        return torch_like.cross_entropy(x, batch["label"]), {"norm1": statistics}

    batch = _batch()
    return loss, _ported(_weights(), fault), batch | {"image": batch["image"].transpose(0, 2, 3, 1)}


CONVNET = Port(
    name="a convolutional network",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("norm1",),
        "padding": ("conv2",),
        "flattening": ("flatten", "fc1"),
        "not flipped": ("conv2",),
        "no bias": ("conv3",),
        "momentum": ("norm1/running_mean", "norm1/running_var"),
        "pooling": ("pool",),
        "activation": ("act1",),
        "another weight": ("conv3",),
        "dropout": ("dropout", "flatten"),
    },
)
