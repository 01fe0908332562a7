"""The calls of a layer within the steps of a loop are paired in turn, also where one program takes fewer steps."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

WIDTH = 4


@cache
def _solved(*, scanned: bool, steps: int = 4) -> Dump:
    """The dump of a solver that calls a layer twice in each step."""

    def loss(weights: Any, x: Any) -> Any:
        def field(x: Any) -> Any:
            with jax.named_scope("field"):
                return jnp.tanh(x @ weights["field"])

        def step(x: Any, _: Any) -> Any:
            return x + 0.25 * field(x + 0.125 * field(x)), None

        if scanned:
            x, _ = lax.scan(step, x, None, length=steps)
        else:
            for _ in range(steps):
                x, _ = step(x, None)
        with jax.named_scope("out"):
            return jnp.square(x @ weights["out"]).mean()

    weights = {"field": drawn(1, WIDTH, WIDTH), "out": drawn(2, WIDTH, 2)}
    return gs.capture(loss, weights, drawn(3, 5, WIDTH), origins=False)


@pytest.mark.parametrize("scanned", [True, False])
def test_steps_before_the_last_one_are_paired(scanned: bool) -> None:
    reference = _solved(scanned=not scanned)
    assert gs.compare(reference, _solved(scanned=scanned)).verdict == "same"
    found = gs.compare(reference, _solved(scanned=scanned, steps=3))
    rows = [row for row in found.rows if row.family == "activation" and row.name.startswith("field")]
    paired = [row for row in rows if row.status not in ("missing", "extra")]
    assert len(paired) == 6, found.sentence
    assert all(row.status == "same" for row in paired), found.sentence
