"""A value that agrees in an order which nothing else has is suspected, and a layout of a port is not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(8).normal
WIDTH = 6
KERNELS = {name: (_draw(size=(WIDTH, WIDTH)) / 2).astype(np.float32) for name in ("mix", "score", "head")}
TABLE = _draw(size=(2 * WIDTH - 1,)).astype(np.float32)
TOKENS = _draw(size=(3, WIDTH, WIDTH)).astype(np.float32)  # as many positions as features
CONVS = [(_draw(size=(3, 3, WIDTH, WIDTH)) / 7).astype(np.float32) for _ in range(2)]
_ROWS = _draw(size=(WIDTH + 1, WIDTH * 16)).astype(np.float32)
IMAGE = _draw(size=(2, WIDTH, WIDTH, WIDTH)).astype(np.float32)


def _attention(names: dict[str, str], *, sign: int = 1, order: bool = False, data: bool = False) -> Dump:
    """Scores of positions with a relative bias, whose sign may be wrong, on tokens that may be in another order."""

    def loss(weights: Any, batch: Any) -> Any:
        positions = jnp.arange(WIDTH)
        with jax.named_scope(names["bias"]):
            bias = weights[names["bias"]]["table"][sign * (positions[:, None] - positions[None]) + WIDTH - 1]
        x = batch["x"]
        with jax.named_scope(names["scale"]):
            x = x.swapaxes(1, 2) if order else x
            x = x * weights[names["scale"]]["scale"]
        with jax.named_scope(names["score"]):
            scores = x @ weights[names["score"]]["kernel"]
        x = jax.nn.softmax(scores @ scores.swapaxes(1, 2) + bias[None]) @ x
        with jax.named_scope(names["head"]):
            x = x @ weights[names["head"]]["kernel"]
        return jnp.square(x).mean()

    kernels = {names["score"]: {"kernel": KERNELS["score"][:, 1:]}, names["head"]: {"kernel": KERNELS["head"]}}
    own = {names["bias"]: {"table": TABLE}, names["scale"]: {"scale": np.float32(1.5)}, **kernels}
    return gs.capture(loss, own, {"x": TOKENS.swapaxes(1, 2) if data else TOKENS}, origins=False)


NAMES = {name: name for name in ("bias", "scale", "score", "head")}
PORT = {"bias": "RelPos_0", "scale": "Scale_0", "score": "Dense_0", "head": "Dense_1"}


@pytest.mark.slow
@sampled(
    ("fault", "at", "next_at"),
    [({"sign": -1}, "bias", "head"), ({"order": True}, "scale", "score"), ({"data": True}, "x", "score")],
    ids=["bias", "order", "input"],
)
def test_a_wrong_order_is_reported_at_the_value_that_has_it(fault: dict[str, Any], at: str, next_at: str) -> None:
    reference = _attention(NAMES)
    assert gs.compare(reference, _attention(PORT)).verdict == "same"
    found = gs.compare(reference, _attention(PORT, **fault))
    assert [row.name for row in found.blame.suspects] == [at], found.sentence
    turned = found.blame.suspects[0]
    assert f"first differs at `{at}`, which agrees in another order ({turned.made_by}) that nothing else has" in (
        found.sentence
    )
    assert f", or at `{next_at}`" in found.sentence
    assert found.to_json()["suspects"] == [at]


def _convolutions(*names: str, channels_last: bool, slope: float = 0.0) -> Dump:
    dimensions = ("NHWC", "HWIO", "NHWC") if channels_last else ("NCHW", "OIHW", "NCHW")

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for number, name in enumerate(names):
            with jax.named_scope(name):
                x = jax.lax.conv_general_dilated(
                    x, weights[name]["kernel"], (1, 1), "SAME", dimension_numbers=dimensions
                )
                x = jax.nn.leaky_relu(x, slope if number else 0.0)
        return jnp.square(x).mean()

    kernels = [each if channels_last else each.transpose(3, 2, 0, 1) for each in CONVS]
    own = {name: {"kernel": kernel} for name, kernel in zip(names, kernels, strict=True)}
    image = IMAGE if channels_last else IMAGE.transpose(0, 3, 1, 2)
    return gs.capture(loss, own, {"x": image}, origins=False)


@pytest.mark.slow
def test_the_layout_of_a_port_is_not_suspected_where_all_axes_have_one_size() -> None:
    reference = _convolutions("conv1", "conv2", channels_last=False)
    assert gs.compare(reference, _convolutions("Conv_0", "Conv_1", channels_last=True)).verdict == "same"
    found = gs.compare(reference, _convolutions("Conv_0", "Conv_1", channels_last=True, slope=0.2))
    assert found.blame.suspects == ()
    assert found.sentence.startswith("Forward first differs at `conv2`")


def _decoder(*names: str, channels_last: bool, slope: float = 0.1) -> Dump:
    """A dense layer whose outputs are an image, in the order of the program's axes, and a function of it."""
    dense, act = names
    kernel, bias = _ROWS[1:], _ROWS[:1]
    if channels_last:
        kernel, bias = (each.reshape(-1, WIDTH, 16).swapaxes(1, 2).reshape(-1, 16 * WIDTH) for each in (kernel, bias))

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(dense):
            x = batch["x"] @ weights[dense]["kernel"] + weights[dense]["bias"]
        x = x.reshape(-1, *((4, 4, WIDTH) if channels_last else (WIDTH, 4, 4)))
        with jax.named_scope(act):
            x = jax.nn.leaky_relu(x, slope)
        return jnp.square(x).mean()

    return gs.capture(loss, {dense: {"kernel": kernel, "bias": bias}}, {"x": TOKENS[0]}, origins=False)


def test_the_order_of_an_image_that_a_kernel_makes_is_a_layout() -> None:
    reference = _decoder("fc", "act", channels_last=False)
    assert gs.compare(reference, _decoder("Dense_0", "Act_0", channels_last=True)).verdict == "same"
    found = gs.compare(reference, _decoder("Dense_0", "Act_0", channels_last=True, slope=0.3))
    assert found.blame.suspects == (), found.sentence
    assert found.sentence.startswith("Forward first differs at `act`")
