"""A mobile network: inverted residuals, squeeze and excitation, a norm over channels, strided depthwise kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.port import Port, Program

#: The number of channels, and the height and width of the images.
WIDTH = 8
WIDE = 2 * WIDTH

Array = Any


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(600 + seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, Any]:
    def conv(seed: int, *shape: int) -> dict[str, Array]:
        scale = float(np.prod(shape[1:])) ** 0.5
        return {"weight": _normal(seed, *shape) / scale, "bias": _normal(seed + 1, shape[0]) / 4}

    def norm(seed: int, size: int) -> dict[str, Array]:
        return {"weight": 1 + _normal(seed, size) / 4, "bias": _normal(seed + 1, size) / 4}

    def block(seed: int) -> dict[str, Any]:
        return {
            "expand": conv(seed, WIDE, WIDTH, 1, 1), "dw": conv(seed + 2, WIDE, 1, 3, 3),
            "se": {"fc1": conv(seed + 4, 4, WIDE, 1, 1), "fc2": conv(seed + 6, WIDE, 4, 1, 1)},
            "project": conv(seed + 8, WIDTH, WIDE, 1, 1),
        }  # fmt: skip

    return {
        "stem": {
            "conv": conv(0, WIDTH, 3, 3, 3),
            "bn": norm(2, WIDTH)
            | {"running_mean": _normal(4, WIDTH) / 4, "running_var": 1 + np.abs(_normal(5, WIDTH))},
        },
        "blocks": {"0": block(20), "1": block(40)},
        "norm": norm(6, WIDTH),
        "classifier": conv(8, 7, WIDTH * 4) | {"bias": _normal(9, 7) / 4},
    }


def _batch() -> dict[str, Array]:
    return {"image": _normal(80, 3, 3, WIDTH, WIDTH), "label": np.array([3, 6, 0], np.int32)}


def _excited(own: Any, x: Array) -> Array:
    with jax.named_scope("fc1"):
        y = jax.nn.relu(torch_like.conv(own["fc1"], x.mean((2, 3), keepdims=True), padding=0))
    with jax.named_scope("fc2"):
        y = torch_like.conv(own["fc2"], y, padding=0)
    return x * jax.nn.sigmoid(y)


def _reference(weights: Any, batch: Any) -> Any:
    x = batch["image"]
    with jax.named_scope("stem"):
        with jax.named_scope("conv"):
            x = torch_like.conv(weights["stem"]["conv"], x)
        with jax.named_scope("bn"):
            x, statistics = torch_like.batch_norm(weights["stem"]["bn"], x)
        with jax.named_scope("act"):
            x = jax.nn.silu(x)
    for number, stride in (("0", 1), ("1", 2)):
        own = weights["blocks"][number]
        with jax.named_scope(f"blocks.{number}"):
            with jax.named_scope("expand"):
                y = torch_like.conv(own["expand"], x, padding=0)
            with jax.named_scope("act1"):
                y = jax.nn.silu(y)
            with jax.named_scope("dw"):
                y = torch_like.conv(own["dw"], y, stride=stride, groups=WIDE)
            with jax.named_scope("se"):
                y = _excited(own["se"], y)
            with jax.named_scope("project"):
                y = torch_like.conv(own["project"], y, padding=0)
            x = x + y if stride == 1 else y
    with jax.named_scope("norm"):
        x = torch_like.layer_norm(weights["norm"], x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    with jax.named_scope("pool"):
        x = torch_like.max_pool(x)
    with jax.named_scope("classifier"):
        x = torch_like.linear(weights["classifier"], x.reshape(x.shape[0], -1))
    return torch_like.cross_entropy(x, batch["label"]), {"bn": statistics}


def _ported(weights: Any, fault: str) -> dict[str, Any]:
    def conv(own: Any) -> dict[str, Array]:
        return {"kernel": np.ascontiguousarray(own["weight"].transpose(2, 3, 1, 0)), "bias": own["bias"]}

    def block(own: Any) -> dict[str, Any]:
        return {
            "Conv_0": conv(own["expand"]), "Conv_1": conv(own["dw"]), "Conv_2": conv(own["project"]),
            "SqueezeExcite_0": {"Conv_0": conv(own["se"]["fc1"]), "Conv_1": conv(own["se"]["fc2"])},
        }  # fmt: skip

    norm = weights["stem"]["bn"]
    blocks = {f"InvertedResidual_{number}": block(weights["blocks"][str(number)]) for number in range(2)}
    if fault == "another weight":
        blocks["InvertedResidual_1"]["Conv_2"] = blocks["InvertedResidual_0"]["Conv_2"]
    rows = weights["classifier"]["weight"]
    if fault != "flattening":
        rows = rows.reshape(7, WIDTH, 2, 2).transpose(0, 2, 3, 1).reshape(7, -1)
    return {
        "Conv_0": conv(weights["stem"]["conv"]),
        "BatchNorm_0": {
            "scale": norm["weight"], "bias": norm["bias"], "mean": norm["running_mean"], "var": norm["running_var"],
        },
        **blocks,
        "LayerNorm_0": {"scale": weights["norm"]["weight"], "bias": weights["norm"]["bias"]},
        "Dense_0": {"kernel": np.ascontiguousarray(rows.T), "bias": weights["classifier"]["bias"]},
    }  # fmt: skip


def _block(own: Any, x: Array, stride: int, fault: str) -> Array:
    with jax.named_scope("Conv_0"):
        y = flax_like.conv(own["Conv_0"], x)
    y = jax.nn.swish(y)
    with jax.named_scope("Conv_1"):
        depthwise = own["Conv_1"]
        if fault == "not flipped":
            depthwise = depthwise | {"kernel": jnp.flip(depthwise["kernel"], (0, 1))}
        edges = "SAME" if fault == "padding" else [(1, 1), (1, 1)]
        y = flax_like.conv(depthwise, y, padding=edges, stride=stride, groups=WIDE)
    with jax.named_scope("SqueezeExcite_0"):
        squeezed = own["SqueezeExcite_0"]
        z = jax.nn.relu(flax_like.conv(squeezed["Conv_0"], y.mean((1, 2), keepdims=True)))
        z = flax_like.conv(squeezed["Conv_1"], z, bias=fault != "no bias")
        y = y * (jax.nn.hard_sigmoid(z) if fault == "activation" else jax.nn.sigmoid(z))
    with jax.named_scope("Conv_2"):
        y = flax_like.conv(own["Conv_2"], y)
    y = flax_like.dropout(y) if fault == "dropout" else y
    return x + y if stride == 1 else y


def _candidate(fault: str) -> Program:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Conv_0"):
            x = flax_like.conv(weights["Conv_0"], batch["image"])
        with jax.named_scope("BatchNorm_0"):
            momentum = 0.1 if fault == "momentum" else 0.9
            x, statistics = flax_like.batch_norm(weights["BatchNorm_0"], x, momentum=momentum)
        x = jax.nn.swish(x)
        for number, stride in ((0, 1), (1, 2)):
            with jax.named_scope(f"InvertedResidual_{number}"):
                own = weights[f"InvertedResidual_{number}"]
                x = _block(own, x, stride, fault if number == 1 else "")
        with jax.named_scope("LayerNorm_0"):
            x = flax_like.layer_norm(weights["LayerNorm_0"], x, epsilon=1e-2 if fault == "epsilon" else 1e-5)
        x = flax_like.pool(x, "mean" if fault == "pooling" else "max")
        with jax.named_scope("Dense_0"):
            x = flax_like.dense(weights["Dense_0"], x.reshape(x.shape[0], -1))
        return torch_like.cross_entropy(x, batch["label"]), {"BatchNorm_0": statistics}

    batch = _batch()
    return loss, _ported(_weights(), fault), batch | {"image": batch["image"].transpose(0, 2, 3, 1)}


MOBILE = Port(
    name="a mobile network",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "epsilon": ("norm",),
        "padding": ("blocks.1/dw",),
        "flattening": ("classifier",),
        "not flipped": ("blocks.1/dw",),
        "no bias": ("blocks.1/se", "blocks.1/se/fc2"),
        "momentum": ("bn/running_mean", "bn/running_var"),
        "pooling": ("pool", "classifier"),
        "activation": ("blocks.1/se",),
        "another weight": ("blocks.1/project", "blocks.1"),
        "dropout": ("norm", "blocks.1", "InvertedResidual_1"),
    },
)
