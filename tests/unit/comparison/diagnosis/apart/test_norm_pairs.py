"""A norm that differs before another one is told under other names, too, although the other undoes the difference."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

WIDTH = 5
NAMES = {"reference": ("bn0", "bn1", "fc"), "port": ("Norm_0", "Norm_1", "Dense_0")}


@cache
def _normed(names: str = "port", epsilon: float = 1e-5) -> Dump:
    """The dump of a batch norm behind another one."""

    def norm(w: Any, x: Any, epsilon: float) -> Any:
        mean = x.mean((0, 1), keepdims=True)
        rest = x - mean
        rest = rest * jax.lax.rsqrt(jnp.square(rest).mean((0, 1), keepdims=True) + epsilon)
        return rest * w["scale"][None, None] + w["bias"][None, None]

    first, second, last = NAMES[names]
    weights = {
        first: {"scale": 1 + 0.1 * drawn(1, WIDTH), "bias": drawn(2, WIDTH)},
        second: {"scale": 1 + 0.1 * drawn(3, WIDTH), "bias": drawn(4, WIDTH)},
        last: {"kernel": drawn(5, WIDTH, 3)},
    }

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope(first):
            x = norm(weights[first], x, epsilon)
        with jax.named_scope(second):
            x = norm(weights[second], x, 0.0)
        with jax.named_scope(last):
            x = jnp.tanh(x) @ weights[last]["kernel"]
        return jnp.square(x).mean()

    return gs.capture(loss, weights, drawn(6, 4, 6, WIDTH), origins=False)


@pytest.mark.parametrize("names", NAMES)
def test_names_do_not_decide_whether_a_hidden_norm_differs(names: str) -> None:
    reference = _normed("reference")
    assert gs.compare(reference, _normed(names)).verdict == "same"
    found = gs.compare(reference, _normed(names, epsilon=1e-2))
    first = found.first_divergence.forward
    assert first is not None, found.sentence
    assert first.name == "bn0", found.sentence
    assert "it adds 1.0e-2 to the variance" in found.sentence, found.sentence
