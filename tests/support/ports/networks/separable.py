"""A network of depthwise convolutions and group norms, under names of another framework and with other modules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

Array = Any

#: The convolutions of the reference, each with the candidate's name.
_CONVS = {
    "features.0": "Conv_0",
    "features.3": "Conv_1",
    "features.4": "Conv_2",
    "features.6": "Conv_3",
    "features.7": "Conv_4",
}


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(100 + seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, dict[str, Array]]:
    def norm(seed: int) -> dict[str, Array]:
        return {"weight": 1 + _normal(seed, 8) / 4, "bias": _normal(seed + 1, 8) / 4}

    def conv(seed: int, *shape: int) -> dict[str, Array]:
        return {"weight": _normal(seed, *shape) / 3, "bias": _normal(seed + 1, shape[0]) / 4}

    return {
        "features.0": conv(0, 8, 3, 3, 3),
        "features.1": {**norm(2), "running_mean": np.zeros(8, np.float32), "running_var": np.ones(8, np.float32)},
        "features.3": conv(4, 8, 1, 3, 3),
        "features.4": conv(6, 8, 8, 1, 1),
        "features.5": norm(8),
        "features.6": conv(10, 8, 1, 3, 3),
        "features.7": conv(12, 8, 8, 1, 1),
        "classifier.1": {"weight": _normal(14, 10, 8 * 4 * 4) / 8, "bias": _normal(15, 10) / 4},
        "classifier.4": {"weight": _normal(16, 10, 10) / 3, "bias": _normal(17, 10) / 4},
    }


def _batch() -> Array:
    return _normal(20, 3, 3, 16, 16)


def _reference(weights: Any, image: Any) -> Any:
    x, statistics = image, None
    for name in ("features.0", "features.1", "features.2", "features.3", "features.4", "features.5"):
        with jax.named_scope(name):
            if name == "features.1":
                x, statistics = torch_like.batch_norm(weights[name], x)
            elif name == "features.2":
                x = jax.nn.relu(x)
            elif name == "features.5":
                x = torch_like.group_norm(weights[name], x, 4)
            else:
                depthwise = weights[name]["weight"].shape[1] == 1
                padding = 0 if weights[name]["weight"].shape[-1] == 1 else 1
                x = torch_like.conv(
                    weights[name], x, padding=padding, stride=2 if name == "features.0" else 1,
                    groups=8 if depthwise else 1,
                )  # fmt: skip
    for name, depthwise in (("features.6", True), ("features.7", False)):
        with jax.named_scope(name):
            x = torch_like.conv(weights[name], x, padding=int(depthwise), groups=8 if depthwise else 1)
    with jax.named_scope("features.8"):
        x = torch_like.max_pool(x)
    with jax.named_scope("classifier.0"):
        x = x.reshape(x.shape[0], -1)
    with jax.named_scope("classifier.1"):
        x = torch_like.linear(weights["classifier.1"], x)
    with jax.named_scope("classifier.2"):
        x = jax.nn.gelu(x, approximate=False)
    with jax.named_scope("classifier.4"):
        x = torch_like.linear(weights["classifier.4"], x)
    return jnp.square(x).mean(), {"features.1": statistics}


def _ported(weights: dict[str, dict[str, Array]], fault: str) -> dict[str, dict[str, Array]]:
    ported: dict[str, dict[str, Array]] = {}
    for name, own in _CONVS.items():
        kernel = weights[name]["weight"].transpose(2, 3, 1, 0)
        ported[own] = {"kernel": np.ascontiguousarray(kernel), "bias": weights[name]["bias"]}
    norm, group = weights["features.1"], weights["features.5"]
    rows = weights["classifier.1"]["weight"].reshape(10, 8, 4, 4).transpose(0, 2, 3, 1).reshape(10, -1)
    rows = weights["classifier.1"]["weight"] if fault == "flattening" else rows
    return ported | {
        "BatchNorm_0": {
            "scale": norm["weight"], "bias": norm["bias"], "mean": norm["running_mean"], "var": norm["running_var"],
        },
        "GroupNorm_0": {"scale": group["weight"], "bias": group["bias"]},
        "Dense_0": {"kernel": np.ascontiguousarray(rows.T), "bias": weights["classifier.1"]["bias"]},
        "Dense_1": {
            "kernel": np.ascontiguousarray(weights["classifier.4"]["weight"].T), "bias": weights["classifier.4"]["bias"]
        },
    }  # fmt: skip


def _candidate(fault: str) -> Program:
    def conv(weights: Any, name: str, x: Any, **options: Any) -> Any:
        used = weights["Conv_1" if fault == "another weight" and name == "Conv_3" else name]
        if fault == "not flipped" and name == "Conv_1":
            used = used | {"kernel": jnp.flip(used["kernel"], (0, 1))}
        with jax.named_scope(name):
            return flax_like.conv(used, x, **options)

    def loss(weights: Any, image: Any) -> Any:
        edges = "SAME" if fault == "padding" else [(1, 1), (1, 1)]
        x = conv(weights, "Conv_0", image, padding=edges, stride=2)
        with jax.named_scope("BatchNorm_0"):
            momentum = 0.1 if fault == "momentum" else 0.9
            x, statistics = flax_like.batch_norm(weights["BatchNorm_0"], x, momentum=momentum)
        x = jax.nn.relu(x)
        x = conv(weights, "Conv_1", x, groups=8)
        x = conv(weights, "Conv_2", x)
        with jax.named_scope("GroupNorm_0"):
            x = flax_like.group_norm(weights["GroupNorm_0"], x, 4, epsilon=1e-3 if fault == "epsilon" else 1e-5)
        x = conv(weights, "Conv_3", x, groups=8)
        x = conv(weights, "Conv_4", x, bias=fault != "no bias")
        x = flax_like.pool(x, "mean" if fault == "pooling" else "max")
        x = x.reshape(x.shape[0], -1)
        with jax.named_scope("Dense_0"):
            x = jax.nn.gelu(flax_like.dense(weights["Dense_0"], x), approximate=fault == "activation")
        x = flax_like.dropout(x) if fault == "dropout" else x
        with jax.named_scope("Dense_1"):
            x = flax_like.dense(weights["Dense_1"], x)
        return jnp.square(x).mean(), {"BatchNorm_0": statistics}

    return loss, _ported(_weights(), fault), _batch().transpose(0, 2, 3, 1)


SEPARABLE = Port(
    name="a network of depthwise convolutions",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("features.5",),
        "padding": ("features.0",),
        "flattening": ("classifier.0", "classifier.1", "classifier.2"),
        "not flipped": ("features.3",),
        "no bias": ("features.7",),
        "momentum": ("features.1/running_mean", "features.1/running_var"),
        "pooling": ("features.8", "classifier.2"),
        "activation": ("classifier.2",),
        "another weight": ("features.6",),
        "dropout": ("classifier.4",),
    },
)
