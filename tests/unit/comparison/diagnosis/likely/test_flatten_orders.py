"""An image that two programs flatten in other orders is told where the values show the orders."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn

CHANNELS, HEIGHT, WIDTH, FEATURES = 3, 2, 4, 5
PARAMS = {"w": drawn(1, CHANNELS * HEIGHT * WIDTH, FEATURES), "b": drawn(2, FEATURES)}
BATCH = {"x": drawn(3, 4, CHANNELS, HEIGHT, WIDTH)}


@cache
def captured(axes: tuple[int, ...], *, scope: bool, factor: float = 1.0) -> gs.Dump:
    """Returns the dump of a dense layer behind an image; without a scope, what is flattened has no entry."""

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> Any:
        with jax.named_scope("act"):
            x = jnp.tanh(batch["x"])
        x = jax.nn.relu(x).transpose(0, *axes)
        with jax.named_scope("flatten" if scope else "dense"):
            x = x.reshape(len(x), -1)
            if not scope:
                x = factor * (x @ params["w"]) + params["b"][None]
        if scope:
            with jax.named_scope("dense"):
                x = factor * (x @ params["w"]) + params["b"][None]
        return jnp.square(jnp.sin(x)).mean()

    return gs.capture(loss, PARAMS, BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("scope", [True, False])
def test_an_image_that_is_flattened_in_another_order_is_told(scope: bool) -> None:
    first, last = (captured(axes, scope=scope) for axes in ((1, 2, 3), (2, 3, 1)))
    place = "flatten" if scope else "dense"
    for one, other, own, its in (
        (first, last, "the order [2, 3, 1]", "their order"),
        (last, first, "their order", "the order [2, 3, 1]"),
    ):
        found = gs.compare(one, other)
        assert found.first_divergence.forward is not None
        assert found.first_divergence.forward.name == place
        words = f"it flattens the axes [1, 2, 3] of `act` in {own}, and the reference in {its}"
        assert words in found.sentence


def test_a_layer_that_computes_something_else_of_the_same_order_flattens_alike() -> None:
    found = gs.compare(captured((1, 2, 3), scope=False), captured((1, 2, 3), scope=False, factor=1.1))
    assert found.verdict == "different"
    assert "flattens" not in found.sentence
