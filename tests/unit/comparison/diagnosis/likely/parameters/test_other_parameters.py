"""A layer that uses the parameters of another one is told, whatever it reads and however it uses them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn
from tests.support.sampled import sampled

BLOCKS = range(3)
NAMES = {"block": "layers_{}", "norm": "LayerNorm_0", "up": "Dense_0", "down": "Dense_1", "scale": "layer_scale"}
WEIGHTS = [
    {"norm": 1 + drawn(10 + n, 6) / 4, "up": drawn(20 + n, 6, 12) / 2, "down": drawn(30 + n, 12, 6) / 3,
     "scale": drawn(40 + n, 6)}
    for n in BLOCKS
]  # fmt: skip

SIZES = {"norm": (8,), "query": (8, 8), "next": (8,), "down": (8, 8)}


@cache
def _blocks(other: str = "", *, port: bool = False, equal: bool = False) -> gs.Dump:
    """A network of blocks, the second of which uses a parameter of the first; nothing has an entry before `down`."""
    names = NAMES if port else {"block": "blocks.{}"} | {name: name for name in WEIGHTS[0]}

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for n in BLOCKS:
            block = names["block"].format(n)
            own = {name: weights[block][names[name]] for name in WEIGHTS[n]}
            own |= {other: weights[names["block"].format(0)][names[other]]} if other and n == 1 else {}
            with jax.named_scope(block):
                with jax.named_scope(names["norm"]):
                    y = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * own["norm"]
                with jax.named_scope(names["up"]):
                    y = y @ own["up"]
                y = jnp.cumsum(jnp.sin(y), 1) * jnp.cos(y)
                with jax.named_scope(names["down"]):
                    y = y @ own["down"]
                x = x + y * own["scale"]
        return jnp.square(x).mean()

    stored = [WEIGHTS[0] if equal else each for each in WEIGHTS]
    weights = {
        names["block"].format(n): {names[name]: each for name, each in stored[n].items()} for n in BLOCKS
    }  # fmt: skip
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": drawn(1, 2, 5, 6)}, origins=False)


@pytest.mark.slow
@sampled(
    ("other", "at", "used", "own"),
    [
        ("down", "blocks.1/down", "blocks.0/down", "blocks.1/down"),
        ("scale", "blocks.1", "blocks.0/scale", "blocks.1/scale"),
    ],
)
def test_the_parameters_of_another_layer_are_told(other: str, at: str, used: str, own: str) -> None:
    reference = _blocks()
    assert gs.compare(reference, _blocks(port=True)).verdict == "same"
    found = gs.compare(reference, _blocks(other, port=True))
    assert found.verdict == "different"
    assert found.sentence.startswith(f"Forward first differs at `{at}` ("), found.sentence
    assert f"; it uses `{used}` in place of `{own}`; " in found.sentence, found.sentence


def test_parameters_of_one_value_are_not_told_apart() -> None:
    found = gs.compare(_blocks(equal=True), _blocks("down", port=True, equal=True))
    assert "in place of" not in found.sentence, found.sentence


@cache
def _decoder(*, port: bool = False, again: bool = False) -> gs.Dump:
    """Two blocks with two norms each, the first of which a faulty port calls twice; it has no scope for its table."""
    weights: dict[str, Any] = {
        str(n): {name: drawn(60 + 4 * n + i, *size) / 3 for i, (name, size) in enumerate(SIZES.items())} for n in (0, 1)
    }
    weights["table"] = drawn(50, 20, 8)
    if port:
        for n in "01":
            weights[n]["query"] = weights[n]["query"].reshape(8, 2, 4)

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("" if port else "embed"):
            x = weights["table"][batch["x"]]
        for n in "01":
            own = weights[n]
            with jax.named_scope(n):
                with jax.named_scope("norm"):
                    y = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * own["norm"]
                with jax.named_scope("query"):
                    y = jnp.einsum("btd,dnh->btnh", y, own["query"]) if port else y @ own["query"]
                x = x + jnp.tanh(y).reshape(x.shape)
                name = "norm" if again else "next"
                with jax.named_scope(name):
                    y = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * own[name]
                with jax.named_scope("down"):
                    x = x + jnp.tanh(y @ own["down"])
        return jnp.square(x).mean()

    tokens = jnp.arange(12).reshape(2, 6) % 7
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": tokens})


@pytest.mark.slow
def test_a_layer_that_is_called_in_place_of_another_is_no_part_of_a_batch() -> None:
    assert gs.compare(_decoder(), _decoder(port=True)).verdict == "same"
    found = gs.compare(_decoder(), _decoder(port=True, again=True))
    assert "Forward first differs at `0/next`" in found.sentence, found.sentence
    assert "it uses `0/norm` in place of `0/next`" in found.sentence
