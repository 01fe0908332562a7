"""A loop that a port runs in reverse has the same iterations under other numbers, and a fault is not blamed on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump

LAYERS, WIDTH = 3, 6
_draw = np.random.default_rng(47).normal
STACKS = {
    "w": (_draw(size=(LAYERS, WIDTH, WIDTH)) / 3).astype(np.float32),
    "b": np.zeros((LAYERS, WIDTH), np.float32),  # zeros say nothing of their order, and their gradient does
}
HEAD = (_draw(size=(WIDTH, 3)) / 2).astype(np.float32)
ROWS = _draw(size=(5, WIDTH)).astype(np.float32)
STEPS = _draw(size=(4, 5, WIDTH)).astype(np.float32)


@cache
def _layers(
    reverse: bool,
    *,
    turned: bool | None = None,
    mid: Callable[[Any], Any] = lambda x: x,
    behind: Callable[[Any], Any] = lambda x: x,
) -> Dump:
    """Layers in a scan, whose weights are stacked in the direction in which they are taken."""

    def loss(weights: Any, x: Any) -> Any:
        def body(x: Any, own: Any) -> Any:
            with jax.named_scope("layers"):
                return x + jnp.tanh(mid(x) @ own["w"] + own["b"][None]), None

        x, _ = lax.scan(body, x, weights["layers"], reverse=reverse)
        with jax.named_scope("head"):
            return jnp.square(behind(x) @ weights["head"]).mean()

    order = slice(None, None, -1 if (reverse if turned is None else turned) else 1)
    layers = {name: np.ascontiguousarray(stack[order]) for name, stack in STACKS.items()}
    return gs.capture(loss, {"layers": layers, "head": HEAD}, ROWS, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("of_ref", [True, False])
def test_a_loop_in_reverse_over_a_reversed_stack_is_the_same(of_ref: bool) -> None:
    dumps = _layers(False), _layers(True)
    found = gs.compare(*dumps if of_ref else dumps[::-1])
    assert found.verdict == "same", found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"behind": jax.nn.relu}, "Forward first differs at `head` ("),
        ({"mid": jnp.sin}, "Forward first differs at `layers[0]` ("),
        ({"mid": lax.stop_gradient}, "Backward only: forward agrees, backward first differs at `layers[1]` ("),
    ],
)
def test_a_fault_is_at_its_layer_where_a_port_runs_a_loop_in_reverse(fault: dict[str, Any], sentence: str) -> None:
    found = gs.compare(_layers(False), _layers(True, **fault))
    assert found.sentence.startswith(sentence), found.sentence


def test_a_loop_that_takes_its_layers_the_wrong_way_round_has_them_by_their_numbers() -> None:
    found = gs.compare(_layers(False), _layers(True, turned=False))
    assert "which reads `value`, and in the candidate `layers[1]`" in found.sentence, found.sentence


@cache
def _recurrent(reverse: bool, *, flipped: bool, function: Callable[[Any], Any] = jnp.tanh) -> Dump:
    """A recurrent layer from the last step on, by a scan in reverse or over steps that are reversed before."""

    def loss(weights: Any, batch: Any) -> Any:
        def body(h: Any, x: Any) -> Any:
            with jax.named_scope("cell"):
                h = jnp.tanh(x @ weights["reads"] + h @ weights["carried"])
            return h, None

        h, _ = lax.scan(body, jnp.zeros((5, WIDTH)), batch[::-1] if flipped else batch, reverse=reverse)
        with jax.named_scope("head"):
            return jnp.square(function(h @ weights["head"])).mean()

    weights = {"reads": STACKS["w"][0], "carried": STACKS["w"][1], "head": HEAD}
    return gs.capture(loss, weights, STEPS, origins=False)


def test_steps_that_are_reversed_before_a_loop_are_those_of_a_loop_in_reverse() -> None:
    reference = _recurrent(True, flipped=False)
    assert gs.compare(reference, _recurrent(False, flipped=True)).verdict == "same"
    found = gs.compare(reference, _recurrent(False, flipped=True, function=partial(jnp.multiply, 1.1)))
    assert found.sentence.startswith("Forward first differs at `head` ("), found.sentence
    found = gs.compare(reference, _recurrent(False, flipped=False))
    assert found.sentence.startswith("Forward first differs at `cell["), found.sentence
