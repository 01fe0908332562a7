"""A WaveNet: dilated causal convolutions, gates, and sums of skips; channels first against channels last."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.ports import flax_like
from tests.support.ports.port import Port, Program

#: The widths of the residual stream and of the skips, and the dilations.
WIDTH, SKIPS, DILATIONS = 6, 10, (1, 2, 4)

Array = Any


def _weights() -> dict[str, Any]:
    draw = np.random.default_rng(31).normal

    def conv(outputs: int, inputs: int, taps: int = 1) -> dict[str, Array]:
        kernel = draw(size=(outputs, inputs, taps)) / (inputs * taps) ** 0.5
        return {"weight": kernel.astype(np.float32), "bias": draw(size=outputs).astype(np.float32) / 4}

    layers = {
        f"layers.{number}": {
            "conv": conv(2 * WIDTH, WIDTH, 2), "res": conv(WIDTH, WIDTH), "skip": conv(SKIPS, WIDTH),
        }
        for number in range(len(DILATIONS))
    }  # fmt: skip
    return {"front": conv(WIDTH, 4), **layers, "post1": conv(SKIPS, SKIPS), "post2": conv(5, SKIPS)}


def _batch() -> dict[str, Array]:
    draw = np.random.default_rng(32)
    return {
        "wave": draw.normal(size=(2, 4, 20)).astype(np.float32),
        "label": draw.integers(0, 5, (2, 20)).astype(np.int32),
    }


def _loss(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


def _conv(own: Any, x: Any, dilation: int = 1) -> Any:
    padding = [(dilation * (own["weight"].shape[-1] - 1), 0)]
    y = lax.conv_general_dilated(
        x, own["weight"], (1,), padding, rhs_dilation=(dilation,), dimension_numbers=("NCH", "OIH", "NCH")
    )
    return y + own["bias"][:, None]


def _reference(weights: Any, batch: Any) -> Any:
    def conv(name: str, own: Any, x: Any, dilation: int = 1) -> Any:
        with jax.named_scope(name):
            return _conv(own, x, dilation)

    x, skips = conv("front", weights["front"], batch["wave"]), 0
    for number, dilation in enumerate(DILATIONS):
        own = weights[f"layers.{number}"]
        with jax.named_scope(f"layers.{number}"):
            first, second = jnp.split(conv("conv", own["conv"], x, dilation), 2, axis=1)
            y = jnp.tanh(first) * jax.nn.sigmoid(second)
            x, skips = x + conv("res", own["res"], y), skips + conv("skip", own["skip"], y)
    x = conv("post1", weights["post1"], jax.nn.relu(skips))
    x = conv("post2", weights["post2"], jax.nn.relu(x))
    return _loss(x.swapaxes(1, 2), batch["label"])


def _ported(weights: Any, fault: str) -> dict[str, Any]:
    def conv(own: Any) -> dict[str, Array]:
        kernel = own["weight"].transpose(2, 1, 0)
        return {"kernel": np.ascontiguousarray(kernel if len(kernel) > 1 else kernel[0]), "bias": own["bias"]}

    stack = [
        {"dilated": conv(own["conv"]), "residual": conv(own["res"]), "out": conv(own["skip"])}
        for own in (weights[f"layers.{number}"] for number in range(len(DILATIONS)))
    ]
    if fault == "another weight":
        stack[1]["out"] = stack[0]["out"]
    return {
        "input": conv(weights["front"]), "stack": stack, "head": [conv(weights["post1"]), conv(weights["post2"])],
    }  # fmt: skip


def _layer(own: Any, x: Any, dilation: int, fault: str) -> tuple[Any, Any]:
    with jax.named_scope("dilated"):
        kernel = own["dilated"]["kernel"]
        kernel = kernel[::-1] if fault == "not flipped" else kernel
        padding = (0, dilation) if fault == "padding" else (dilation, 0)
        if fault == "dilation":
            dilation, padding = 3, (3, 0)
        y = lax.conv_general_dilated(
            x, kernel, (1,), [padding], rhs_dilation=(dilation,), dimension_numbers=("NHC", "HIO", "NHC")
        )
        first, second = jnp.split(y + own["dilated"]["bias"], 2, axis=-1)
    if fault == "gates":
        first, second = second, first
    z = jnp.tanh(first) * (jax.nn.hard_sigmoid(second) if fault == "activation" else jax.nn.sigmoid(second))
    z = flax_like.dropout(z) if fault == "dropout" else z
    with jax.named_scope("out"):
        skip = flax_like.dense(own["out"], z, bias=fault != "no bias")
    with jax.named_scope("residual"):
        y = flax_like.dense(own["residual"], z)
    return x + y, skip


def _candidate(fault: str) -> Program:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("input"):
            x, skips = flax_like.dense(weights["input"], batch["wave"]), 0
        for number, dilation in enumerate(DILATIONS):
            with jax.named_scope(f"wave_{number}"):
                x, skip = _layer(weights["stack"][number], x, dilation, fault if number == 1 else "")
            skips = skips + skip
        x = jax.nn.leaky_relu(skips, 0.2) if fault == "leaky" else jax.nn.relu(skips)
        with jax.named_scope("head_0"):
            x = flax_like.dense(weights["head"][0], x)
        with jax.named_scope("head_1"):
            x = flax_like.dense(weights["head"][1], jax.nn.relu(x))
        return _loss(x, batch["label"])

    batch = _batch()
    return loss, _ported(_weights(), fault), batch | {"wave": np.ascontiguousarray(batch["wave"].swapaxes(1, 2))}


WAVES = Port(
    name="a WaveNet",
    reference=(_reference, _weights(), _batch()),
    candidate=_candidate,
    shows_at={
        "padding": ("layers.1/conv",),
        "not flipped": ("layers.1/conv",),
        "no bias": ("layers.1/skip",),
        "activation": ("layers.1/res", "layers.1/skip"),
        "another weight": ("layers.1/skip",),
        "dropout": ("layers.1/res", "layers.1/skip"),
        "dilation": ("layers.1/conv",),
        "gates": ("layers.1/res", "layers.1/skip"),
        "leaky": ("post1",),
    },
)
