"""Parameters that differ by one number are paired by their gradients: a program may add it by itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

SCALE, UP, OUT, X = 1 + drawn(0, 8) / 3, drawn(1, 8, 12) / 3, drawn(2, 12, 3) / 3, drawn(3, 4, 6, 8)
NAMES, PORTED = ("norm", "up", "out"), ("RMSNorm_0", "Dense_0", "Dense_1")


@cache
def captured(names: tuple[str, str, str], *, added: float = 0.0, stored: float = 0.0, shift: float = 0.0) -> gs.Dump:
    """Returns the dump of a network with a norm.

    Args:
        names: The names of its layers.
        added: What the norm adds to its scale.
        stored: What is added to the scale that is stored.
        shift: What is added to the last bias.
    """
    norm, up, out = names

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope(norm):
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
            x = x * (added + weights[norm])[None, None]
        with jax.named_scope(up):
            x = jnp.tanh(x @ weights[up])
        with jax.named_scope(out):
            return (x @ weights[out]["kernel"] + weights[out]["bias"][None, None]).sum()

    last = {"kernel": OUT, "bias": np.array([1, 2, 4], np.float32) / 8 + np.float32(shift)}
    weights = {norm: (SCALE + np.float32(stored)).astype(np.float32), up: UP, out: last}
    return gs.capture(loss, weights, X, origins=False)


@pytest.mark.parametrize("names", [NAMES, PORTED])
def test_a_norm_that_multiplies_by_one_plus_its_scale_is_the_same(names: tuple[str, str, str]) -> None:
    plain = captured(NAMES)
    found = gs.compare(plain, captured(names, added=1, stored=-1))
    assert found.verdict == "same", found.sentence
    assert "`norm` is less by 1 in the candidate, which adds that itself" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("names", [NAMES, PORTED])
@pytest.mark.parametrize(("added", "stored"), [(0.0, -1.0), (1.0, 0.0), (1.0, -0.5)])
def test_one_that_multiplies_by_another_scale_is_not(names: tuple[str, str, str], added: float, stored: float) -> None:
    found = gs.compare(captured(NAMES), captured(names, added=added, stored=stored))
    assert found.verdict == "different"
    assert "Forward first differs at `norm` " in found.sentence, found.sentence


def test_a_bias_that_is_less_by_a_number_is_named_where_its_gradient_is_the_same() -> None:
    """The gradient of the last bias of a sum is the same whatever the bias is, and nothing adds the number."""
    found = gs.compare(captured(NAMES), captured(PORTED, shift=0.5))
    assert found.sentence.startswith("The runs start from different parameters (`out/bias`"), found.sentence
    assert found.verdict == "different"
