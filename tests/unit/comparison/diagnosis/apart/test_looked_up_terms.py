"""A branch added to an embedding without an entry is no fault, in slices of stacked parameters either."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

LAYERS, WIDTH, WORDS = 3, 6, 7
TABLE, HEAD = drawn(1, WORDS, WIDTH), drawn(2, WIDTH, 3)
MIX, UP, DOWN = 0.5 * drawn(3, LAYERS, WIDTH, WIDTH), drawn(4, LAYERS, WIDTH, 9), 0.4 * drawn(5, LAYERS, 9, WIDTH)
TOKENS = np.random.default_rng(6).integers(0, WORDS, (4, 5)).astype(np.int32)


def _attended(x: Any, kernel: Any) -> Any:
    return jax.nn.softmax(x @ x.swapaxes(1, 2)) @ (x @ kernel)


@cache
def _unrolled() -> Dump:
    """The dump of blocks of which the first part is a branch, and the second one adds its own up."""

    def loss(weights: Any, tokens: Any) -> Any:
        x = weights["table"][tokens]
        for number, layer in enumerate(weights["layers"]):
            with jax.named_scope(f"layers.{number}"):
                with jax.named_scope("mix"):
                    y = _attended(x, layer["mix"])
                x = x + y
                with jax.named_scope("mlp"):
                    x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    layers = [{"mix": MIX[at], "up": UP[at], "down": DOWN[at]} for at in range(LAYERS)]
    return gs.capture(loss, {"table": TABLE, "layers": layers, "head": HEAD}, TOKENS, origins=False)


@cache
def _scanned(function: Any = jnp.tanh) -> Dump:
    """The dump of such blocks in a scan, of which both parts add up."""

    def loss(weights: Any, tokens: Any) -> Any:
        def body(x: Any, layer: Any) -> Any:
            with jax.named_scope("attention"):
                x = x + _attended(x, layer["mix"])
            with jax.named_scope("ff"):
                return x + function(x @ layer["up"]) @ layer["down"], None

        x, _ = lax.scan(body, weights["table"][tokens], weights["blocks"])
        with jax.named_scope("out"):
            return jnp.square(x @ weights["out"]).mean()

    blocks = {"mix": MIX, "up": UP, "down": DOWN}
    return gs.capture(loss, {"table": TABLE, "blocks": blocks, "out": HEAD}, TOKENS, origins=False)


def test_the_layer_behind_a_sum_with_an_embedding_is_named() -> None:
    reference = _unrolled()
    assert gs.compare(reference, _scanned()).verdict == "same"
    for found in (gs.compare(reference, _scanned(jax.nn.relu)), gs.compare(_scanned(jax.nn.relu), reference)):
        names = {row.name: row.counterpart for row in found.rows if row.family == "activation"}
        assert names.get("layers.0/mlp") == "ff[0]" or names.get("ff[0]") == "layers.0/mlp", found.sentence
        first = found.first_divergence.forward
        assert first is not None
        assert {first.name, first.counterpart} == {"layers.0/mlp", "ff[0]"}, found.sentence
