"""Steps of a loop compute the same in all iterations: where some have no known formula, the others have none either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import gradscope as gs
from gradscope.comparison.diagnosis.suspects.replaying import stretch

WIDTH = 4


def _drawn(seed: int, *shape: int) -> Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32))


def _captured(length: int, decay: Callable[[Array], Array], *, scanned: bool) -> gs.Dump:
    """A recurrence that is no formula of what its steps read, between two dense layers."""

    def loss(weights: dict[str, Array], batch: dict[str, Array]) -> Array:
        with jax.named_scope("read"):
            x = batch["x"] @ weights["read"]

        def step(state: Array, each: Array) -> tuple[Array, Array]:
            state = decay(weights["decay"])[None] * state + jnp.sin(each) / (1 + each * each)
            return state, jnp.cos(state) * each

        with jax.named_scope("mix"):
            steps, state = [], jnp.zeros(x.shape[1:])
            if scanned:
                x = jax.lax.scan(step, state, x)[1]
            else:
                for each in x:
                    state, made = step(state, each)
                    steps.append(made)
                x = jnp.stack(steps)
        with jax.named_scope("out"):
            return jnp.square(x @ weights["out"]).mean()

    weights = {"read": _drawn(1, WIDTH, WIDTH), "decay": _drawn(2, WIDTH), "out": _drawn(3, WIDTH, WIDTH)}
    return gs.capture(loss, weights, {"x": _drawn(4, length, 3, WIDTH)}, origins=False)


def test_a_longer_loop_is_searched_for_no_more_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    search = stretch.formula_of

    def counted(reads: Sequence[Any], value: Any) -> Any:
        searched[-1] += 1
        return search(reads, value)

    monkeypatch.setattr(stretch, "formula_of", counted)
    for length in (5, 20):
        searched.append(0)
        reference = _captured(length, jax.nn.sigmoid, scanned=False)
        found = gs.compare(reference, _captured(length, jnp.tanh, scanned=True))
        assert found.verdict == "different"
    assert searched[0] == searched[1] > 0
