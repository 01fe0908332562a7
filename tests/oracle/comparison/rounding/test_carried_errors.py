"""Norms of few values make much of the rounding that they read: programs that add in another order are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

WIDTH, EXAMPLES, DEPTH = 32, 3, 14
_draw = np.random.default_rng(0).normal
PARAMS = {
    f"l{number}": {
        "w": (_draw(size=(WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5).astype(np.float32),
        "scale": (1 + 0.2 * _draw(size=WIDTH)).astype(np.float32),
        "bias": (0.2 * _draw(size=WIDTH)).astype(np.float32),
    }
    for number in range(DEPTH)
}
INPUTS = _draw(size=(EXAMPLES, WIDTH)).astype(np.float32)
WEIGHTS = _draw(size=(EXAMPLES, WIDTH)).astype(np.float32)

AT_ONCE = [slice(0, WIDTH)]
IN_PARTS = [slice(at, at + 16) for at in range(0, WIDTH, 16)]


def captured(
    parts: Sequence[slice],
    epsilon: Callable[[int], float] = lambda _: 1e-5,
    *,
    scale: float = 1.0,
    offset: float = 0.0,
) -> Dump:
    def loss(params: Any, x: Any) -> Any:
        for number in range(DEPTH):
            own = params[f"l{number}"]
            with jax.named_scope(f"dense{number}"):
                h = reduce(jnp.add, [x[:, part] @ own["w"][part] for part in parts])
            with jax.named_scope(f"norm{number}"):
                rest = h - h.mean(0, keepdims=True)
                deviation = jnp.sqrt(jnp.square(rest).mean(0, keepdims=True) + epsilon(number))
                h = rest / deviation * own["scale"][None] + own["bias"][None]
            with jax.named_scope(f"relu{number}"):
                x = jax.nn.relu(h)
        return scale * (x * WEIGHTS).mean() - offset

    return gs.capture(loss, PARAMS, INPUTS, origins=False)


@cache
def reference() -> Dump:
    return captured(AT_ONCE)


def test_rounding_that_norms_of_three_values_carry_on_is_no_difference() -> None:
    found = gs.compare(reference(), captured(IN_PARTS))
    assert found.verdict == "same", found.sentence
    assert max(row.needed or 0 for row in found.rows) > 1e-3  # ten times the default tolerance


def test_an_epsilon_is_found_among_the_errors_that_are_carried_on() -> None:
    found = gs.compare(reference(), captured(IN_PARTS, lambda number: 1e-3 if number == 11 else 1e-5))
    assert found.verdict == "different"
    first = found.first_divergence.forward
    assert first is not None
    assert first.name == "norm11"


@pytest.mark.slow
def test_a_loss_may_be_as_far_apart_as_its_values_make_it_and_no_further() -> None:
    offset = 0.999 * float(reference().loss or 0.0)  # the loss moves by a thousand times the error of its values
    exact, rounded = captured(AT_ONCE, offset=offset), captured(IN_PARTS, offset=offset)
    assert exact.loss != pytest.approx(rounded.loss, rel=1e-2)
    agreeing = gs.compare(exact, rounded)
    assert (agreeing.verdict, agreeing.losses) == ("same", None), agreeing.sentence
    found = gs.compare(exact, captured(AT_ONCE, scale=1.001, offset=offset))
    assert found.verdict == "different"
    assert "the loss" in found.sentence
