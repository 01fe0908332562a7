"""One of several outputs of a layer is no counterpart of another one of its parameters' uses."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(8).normal
TOKENS = _draw(size=(4, 6, 3)).astype(np.float32)
FORTH, BACK, OUT = (_draw(size=size).astype(np.float32) / 2 for size in ((3, 5), (3, 5), (10, 2)))


def _running(x: Any, kernel: Any) -> Any:
    return jnp.tanh(jnp.cumsum(x @ kernel, axis=1))


@cache
def _reference() -> Dump:
    """A layer that returns both directions, and the last values of both, as a recurrent one of PyTorch does."""

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        with jax.named_scope("rnn"):
            forth, back = _running(x, weights["forth"]), _running(x[:, ::-1], weights["back"])[:, ::-1]
            both, last = jnp.concatenate([forth, back], -1), jnp.stack([forth[:, -1], back[:, 0]])
        with jax.named_scope("out"):
            y = both @ weights["out"]
        return jnp.square(y).mean() + 0.0 * last.sum()

    return gs.capture(loss, {"forth": FORTH, "back": BACK, "out": OUT}, {"x": TOKENS}, origins=False)


@cache
def _port(*, wrong: bool) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["image"]
        with jax.named_scope("Forward_0"):
            forth = _running(x, weights["Forward_0"])
        with jax.named_scope("Backward_0"):
            back = _running(x[:, ::-1], weights["Forward_0" if wrong else "Backward_0"])[:, ::-1]
        with jax.named_scope("Dense_0"):
            y = jnp.concatenate([forth, back], -1) @ weights["Dense_0"]
        return jnp.square(y).mean()

    return gs.capture(loss, {"Forward_0": FORTH, "Backward_0": FORTH if wrong else BACK, "Dense_0": OUT},
                      {"image": TOKENS}, origins=False)  # fmt: skip


@pytest.mark.slow
def test_an_output_of_another_size_is_no_counterpart_of_one_of_several() -> None:
    reference = _reference()
    assert gs.compare(reference, _port(wrong=False))
    found = gs.compare(reference, _port(wrong=True))
    assert not found
    assert not any(row.why.startswith("the shape is") for row in found.rows), found.sentence
    assert "Forward first differs at `rnn.0`" in found.sentence, found.sentence


@cache
def _cell(*, of_port: bool, fault: str = "") -> Dump:
    """A cell in a loop over steps that returns `(h, c)`, or `(c, h)` as a port has it."""
    names = ("LSTM_0", "Dense_0") if of_port else ("cell", "out")

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        h = c = jnp.zeros((4, 5))
        for step in range(3):
            with jax.named_scope(names[0]):
                a, b = jnp.split(x[:, step] @ weights["forth"], [5], -1)[0], h @ weights["state"]
                gate = jax.nn.sigmoid(a + b + (1.0 if fault == "gate" else 0.0))
                c = gate * c + (1 - gate) * 3 * jnp.tanh(a - b)
                h = jnp.tanh(c) * 0.5
                h, c = (
                    jax.lax.optimization_barrier((h, c)) if not of_port else jax.lax.optimization_barrier((c, h))[::-1]
                )
            with jax.named_scope(names[1]):
                y = h @ weights["last"]
        return jnp.square(y).mean() + 0.0 * c.sum()

    weights = {"forth": FORTH * 2, "state": _draw_of(3, 5, 5), "last": _draw_of(4, 5, 2)}
    return gs.capture(loss, weights, {"x": TOKENS}, origins=False)


def _draw_of(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_the_numbered_outputs_of_a_cell_are_paired_by_their_values_where_all_differ() -> None:
    reference = _cell(of_port=False)
    for fault in ("", "gate"):
        found = gs.compare(reference, _cell(of_port=True, fault=fault))
        assert bool(found) is (not fault), found.sentence
        pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation" and "cell" in row.name}
        calls = ("", "#2", "#3")
        assert pairs == {f"cell{n}.{at}": f"LSTM_0{n}.{1 - at}" for n in calls for at in (0, 1)}, found.sentence


@pytest.mark.slow
def test_outputs_are_paired_by_their_values_also_beside_masks() -> None:
    def captured(*, of_port: bool, shift: float = 0.0) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("Heads_0" if of_port else "heads"):
                x = batch["x"][:, 0] @ weights["forth"] + shift
                found = [jnp.tanh(x), 3 * jnp.sin(x) - 1, jnp.square(x), x > 0, x > 1]
                a, b, c, keep, more = jax.lax.optimization_barrier([found[at] for at in order])
                one = dict(zip(order, (a, b, c, keep, more), strict=True))
            with jax.named_scope("Dense_0" if of_port else "out"):
                y = (jnp.where(one[3], one[0], one[1]) + jnp.where(one[4], one[2], 0.0)) @ weights["last"]
            return jnp.square(y).mean()

        order = (1, 0, 2, 4, 3) if of_port else (0, 1, 2, 3, 4)
        return gs.capture(loss, {"forth": FORTH, "last": _draw_of(4, 5, 2)}, {"x": TOKENS}, origins=False)

    found = gs.compare(captured(of_port=False), captured(of_port=True, shift=0.5))
    pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation" and row.counterpart}
    assert {f"heads.{at}": pairs[f"heads.{at}"] for at in range(3)} == {
        "heads.0": "Heads_0.1", "heads.1": "Heads_0.0", "heads.2": "Heads_0.2",
    }, found.sentence  # fmt: skip
