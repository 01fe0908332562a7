"""Values are joined in another order before a layer reads them: a skip connection, or the places of merged patches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.sampled import sampled

Array = Any


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(3100 + seed).normal(size=shape).astype(np.float32)


CHANNELS, DEEP = 3, 5
IMAGE = drawn(0, 2, 3, 8, 8)
KERNELS = {
    "down": drawn(1, CHANNELS, 3, 3, 3) / 3,
    "mid": drawn(2, DEEP, CHANNELS, 3, 3) / 3,
    "up": drawn(3, 6, CHANNELS + DEEP, 3, 3) / 5,
    "merge": drawn(4, 6, 4 * CHANNELS) / 3,
}
SCALE, SHIFT = 1 + drawn(5, 4 * CHANNELS) / 4, drawn(6, 4 * CHANNELS) / 4
PLACES = ((0, 0), (1, 0), (0, 1), (1, 1))


def _skipped(names: dict[str, str], *, first: str = "last", function: str = "relu", ported: bool = False) -> gs.Dump:
    """An image and one of an earlier layer behind it, or before it; channels first in the reference."""
    kernels = {names[each]: KERNELS[each].transpose(2, 3, 1, 0) if ported else KERNELS[each] for each in names}
    axes = ("NHWC", "HWIO", "NHWC") if ported else ("NCHW", "OIHW", "NCHW")
    channels, (one, other) = (3, (1, 2)) if ported else (1, (2, 3))

    def loss(weights: Any, batch: Any) -> Any:
        def conv(name: str, x: Array, stride: int = 1) -> Array:
            with jax.named_scope(names[name]):
                return jax.lax.conv_general_dilated(
                    x, weights[names[name]], (stride, stride), "SAME", dimension_numbers=axes
                )

        skip = conv("down", batch["x"])
        deep = jax.nn.relu(conv("mid", jax.nn.relu(skip), 2))
        deep = jnp.repeat(jnp.repeat(deep, 2, one), 2, other)
        skip = getattr(jax.nn, function)(skip)
        x = conv("up", jnp.concatenate([skip, deep] if first == "skip" else [deep, skip], channels))
        return jnp.square(jax.nn.relu(x)).mean()

    return gs.capture(loss, kernels, {"x": IMAGE.transpose(0, 2, 3, 1) if ported else IMAGE}, origins=False)


OWN = {name: name for name in ("down", "mid", "up")}
ITS = {"down": "Conv_0", "mid": "Conv_1", "up": "Conv_2"}


@pytest.mark.slow
def test_a_skip_connection_that_is_joined_on_the_other_side_is_told() -> None:
    reference = _skipped(OWN)
    assert gs.compare(reference, _skipped(ITS, ported=True)).verdict == "same"
    found = gs.compare(reference, _skipped(ITS, ported=True, first="skip"))
    assert found.verdict == "different"
    assert found.sentence.startswith("Forward first differs at `up`"), found.sentence
    told = "which reads the relu of `down` as the channels 5 to 7, and in the candidate as the channels 0 to 2"
    assert told in found.sentence
    # Where it is joined rightly, and is of another function, no order is told.
    other = gs.compare(reference, _skipped(ITS, ported=True, function="gelu"))
    assert other.verdict == "different"
    assert "as the channels" not in other.sentence


def _merged(
    names: dict[str, str], order: tuple[int, ...] = (0, 1, 2, 3), *, norm: bool, ported: bool = False
) -> gs.Dump:
    """Every second place of an image from each of four on, joined, normalised and multiplied by a kernel."""
    dense = KERNELS["merge"].T if ported else KERNELS["merge"]
    weights = {names["down"]: KERNELS["down"], names["merge"]: dense}
    weights |= {names["norm"]: {"scale": SCALE, "bias": SHIFT}} if norm else {}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(names["down"]):
            x = jax.lax.conv_general_dilated(
                batch["x"], weights[names["down"]], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
            )
        x = x.transpose(0, 2, 3, 1)
        x = jnp.concatenate([x[:, PLACES[at][0] :: 2, PLACES[at][1] :: 2] for at in order], -1)
        if norm:
            with jax.named_scope(names["norm"]):
                x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
                x = x * weights[names["norm"]]["scale"] + weights[names["norm"]]["bias"]
        with jax.named_scope(names["merge"]):
            x = x @ (weights[names["merge"]] if ported else weights[names["merge"]].T)
        return jnp.square(x).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": IMAGE}, origins=False)


MERGE = {name: name for name in ("down", "norm", "merge")}
PORTED = {"down": "Conv_0", "norm": "LayerNorm_0", "merge": "Dense_0"}


@pytest.mark.parametrize(
    ("norm", "at", "told"),
    [
        (True, "norm", "in what it reads, whose channels are in the order [0, 2, 1, 3] of 4 parts"),
        (
            False,
            "merge",
            (
                "which reads `down` at every 2 places from [0, 1] as the channels 6 to 8, and in the candidate as the "
                "channels 3 to 5"
            ),
        ),
    ],
    ids=["norm", "dense"],
)
def test_patches_that_are_merged_in_another_order_are_told(*, norm: bool, at: str, told: str) -> None:
    reference = _merged(MERGE, norm=norm)
    assert gs.compare(reference, _merged(PORTED, norm=norm, ported=True)).verdict == "same"
    found = gs.compare(reference, _merged(PORTED, (0, 2, 1, 3), norm=norm, ported=True))
    assert found.verdict == "different"
    assert found.sentence.startswith(f"Forward first differs at `{at}`"), found.sentence
    assert told in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 4])
@sampled("shifted", [True, False], ids=["scale and bias", "scale alone"])
def test_channels_in_another_order_are_told_of_a_norm_of_groups(*, groups: int, shifted: bool) -> None:
    def net(*, ported: bool = False, exchanged: bool = False, wrong: float = 1.0) -> gs.Dump:
        names = {"stem": "Conv_0", "norm": "GroupNorm_0"} if ported else {"stem": "stem", "norm": "norm"}
        axes = ("NHWC", "HWIO", "NHWC") if ported else ("NCHW", "OIHW", "NCHW")

        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(names["stem"]):
                x = jax.lax.conv_general_dilated(batch["x"], weights["stem"], (1, 1), "SAME", dimension_numbers=axes)
            parts = (jnp.tanh(x), jnp.sin(3 * x))
            x = jnp.concatenate(parts[::-1] if exchanged else parts, 3 if ported else 1)
            with jax.named_scope(names["norm"]):
                shape, along = (2, groups, 8 // groups, 8, 8), (2, 3, 4)
                shape, along = ((2, 8, 8, groups, 8 // groups), (1, 2, 4)) if ported else (shape, along)
                y = x.reshape(shape)
                y = (y - y.mean(along, keepdims=True)) / jnp.sqrt(y.var(along, keepdims=True) + 1e-5)
                own = (-1,) if ported else (-1, 1, 1)
                x = wrong * y.reshape(x.shape) * weights["scale"].reshape(own)
                x = x + weights["bias"].reshape(own) if shifted else x
            return jnp.square(jnp.tanh(x) - 0.3).mean()

        stem = drawn(7, 4, 3, 3, 3)
        weights = {"stem": stem.transpose(2, 3, 1, 0) if ported else stem, "scale": SCALE[:8]}
        weights |= {"bias": SHIFT[:8]} if shifted else {}
        with jax.numpy_rank_promotion("allow"):
            return gs.capture(loss, weights, {"x": IMAGE.transpose(0, 2, 3, 1) if ported else IMAGE}, origins=False)

    reference = net()
    assert gs.compare(reference, net(ported=True)).verdict == "same"
    found = gs.compare(reference, net(ported=True, exchanged=True))
    assert found.sentence.startswith("Forward first differs at `norm`"), found.sentence
    assert "in what it reads, whose channels are in the order [1, 0] of 2 parts" in found.sentence, found.sentence
    other = gs.compare(reference, net(ported=True, wrong=1.1))
    assert "whose channels" not in other.sentence, other.sentence
