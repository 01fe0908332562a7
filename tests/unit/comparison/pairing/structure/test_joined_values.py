"""A bidirectional layer returns both directions as one value, which a port joins of the outputs of two loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(9).normal
WIDTH, TIME = 4, 3
WEIGHTS = {name: _draw(size=(WIDTH, WIDTH), scale=0.5).astype(np.float32) for name in ("fw", "bw", "in_fw", "in_bw")}
HEAD, X = _draw(size=(2 * WIDTH, 3)).astype(np.float32), _draw(size=(2, TIME, WIDTH)).astype(np.float32)


@cache
def _tagger(*, ported: bool, wrong: str = "") -> Dump:
    """A bidirectional layer and a head; the port has time first inside of its loops.

    Args:
        ported: Whether it is the port.
        wrong: What is wrong in the port: the `order` of the directions, a `factor` behind them, or the `start`.
    """

    def direction(own: Any, name: str, xs: Any) -> tuple[Any, Any]:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            carry = jnp.tanh(carry @ own[name] + x @ own[f"in_{name}"])
            return carry, carry

        carry: Any = jnp.full((2, WIDTH), 0.5 if wrong == "start" and name == "bw" else 0.0)
        if ported:
            return jax.lax.scan(step, carry, xs.swapaxes(0, 1), reverse=name == "bw")
        made: list[Any] = []  # PyTorch shows nothing of the inside of its layer, and neither do steps without scopes
        for place in range(TIME)[:: -1 if name == "bw" else 1]:
            carry, _ = step(carry, xs[:, place])
            made.append(carry)
        return carry, jnp.stack(made[:: -1 if name == "bw" else 1])

    def loss(weights: Any, xs: Any) -> Any:
        if ported:
            both: list[Any] = []
            for name in ("fw", "bw"):
                with jax.named_scope(name):
                    both.append(direction(weights["rnn"], name, xs)[1])
            x = jnp.concatenate(both[::-1] if wrong == "order" else both, axis=-1).swapaxes(0, 1)
            last: Any = ()
        else:
            with jax.named_scope("lstm"):
                last, made = zip(*(direction(weights["rnn"], name, xs) for name in ("fw", "bw")), strict=True)
                x = jnp.concatenate([each.swapaxes(0, 1) for each in made], axis=-1)
        x = jnp.linspace(0.5, 1.5, TIME)[None, :, None] * x if wrong == "factor" else x
        with jax.named_scope("Dense_0" if ported else "head"):
            return jnp.square(x @ weights["head"]).mean(), last

    return gs.capture(loss, {"rnn": WEIGHTS, "head": HEAD}, X, origins=False)


@pytest.mark.slow
def test_two_values_that_are_joined_in_one_are_found() -> None:
    found = gs.compare(_tagger(ported=False), _tagger(ported=True), allow_missing="0|1")
    assert found.verdict == "same", found.sentence
    pairs = {row.name: row for row in found.rows if row.family == "activation"}
    assert pairs["lstm"].counterpart == "fw, bw", pairs["lstm"]
    back = gs.compare(_tagger(ported=True), _tagger(ported=False), allow_missing="0|1")
    assert {row.name: row.counterpart for row in back.rows if row.family == "activation"}.items() >= {
        "fw": "lstm",
        "bw": "lstm",
    }.items()


@sampled(("wrong", "layer"), [("order", "head"), ("factor", "head"), ("start", "lstm")])
def test_a_fault_is_named_before_behind_and_in_such_a_layer(wrong: str, layer: str) -> None:
    found = gs.compare(_tagger(ported=False), _tagger(ported=True, wrong=wrong))
    assert found.first_divergence.forward is not None, found.sentence
    suspects = [row.name for row in found.blame.suspects]
    assert (suspects or [found.first_divergence.forward.name])[0] == layer, found.sentence
