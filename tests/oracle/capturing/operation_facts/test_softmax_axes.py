"""Of a softmax over the examples it is said that it is, through whatever the logits are made by; of no other axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.presentation.tables.facts import facts
from tests.support.data import drawn
from tests.support.sampled import sampled

P = {"w": drawn(1, 8, 4), "b": jnp.zeros((1, 4)), "table": drawn(2, 16, 8), "conv": drawn(3, 3, 8, 8)}
X, IMAGES = drawn(4, 16, 8), drawn(5, 16, 5, 8)


def conv(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


@sampled(
    ("made", "batch"),
    [(lambda p, x: jax.nn.relu(x @ p["table"].T) @ p["table"], X),
     (lambda p, x: jnp.einsum("nd,ed->ne", x, p["table"][:8]), X),
     (lambda p, x: jax.vmap(lambda row: jnp.tanh(p["table"][:8] @ row))(x), X),
     (lambda p, ids: p["table"][ids], jnp.arange(16)), (lambda p, x: conv(x, p["conv"]).mean(1), IMAGES),
     (lambda p, x: jnp.swapaxes(x, 1, 2).reshape(16, -1)[:, :8] * p["table"][:1], IMAGES)],
)  # fmt: skip
def test_the_axis_of_the_examples_is_followed_to_the_batch(made: Callable[[Any, Any], Any], batch: Any) -> None:
    def loss(p: Any, x: Any) -> Any:
        logits = made(p, x) @ p["w"] + p["b"]
        return -jax.nn.log_softmax(logits, 0)[jnp.arange(16), jnp.arange(16) % 4].mean()

    said = dict(facts("", gs.capture(loss, P, batch).manifest))["no effect"]
    assert said.endswith("takes out what it adds, over axis 0 of [16, 4], that of the examples")


@pytest.mark.slow
def test_another_axis_without_effect_is_not_that_of_the_examples() -> None:
    def loss(p: Any, x: Any) -> Any:
        return -jax.nn.log_softmax(conv(x, p["conv"]) @ p["w"] + p["b"][None], 1)[:, 0, 0].mean()

    said = dict(facts("", gs.capture(loss, P, IMAGES).manifest))["no effect"]
    assert said.endswith("takes out what it adds")
