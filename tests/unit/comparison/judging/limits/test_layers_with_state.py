"""A layer whose state differs makes no error by itself, and one whose state agrees may."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(7).normal
INPUTS = _draw(size=(8, 6)).astype(np.float32)
PARAMS = {"dense": {"w": _draw(size=(6, 5)).astype(np.float32)}, "norm": {"scale": np.ones(5, np.float32)}}
KEPT = {"mean": np.full(5, 0.3, np.float32), "var": np.full(5, 2.0, np.float32)}
FRESH = {"mean": np.zeros(5, np.float32), "var": np.ones(5, np.float32)}


def captured(statistics: Any, *, epsilon: float = 1e-5) -> Dump:
    """A norm in evaluation mode, behind a layer."""

    def loss(variables: Any, x: Any) -> Any:
        params, running = variables["params"], variables["batch_stats"]["norm"]
        with jax.named_scope("dense"):
            h = x @ params["dense"]["w"]
        with jax.named_scope("norm"):
            h = (h - running["mean"][None]) / jnp.sqrt(running["var"][None] + epsilon) * params["norm"]["scale"][None]
        with jax.named_scope("head"):
            return jnp.square(jnp.tanh(h)).mean()

    return gs.capture(loss, {"params": PARAMS, "batch_stats": {"norm": statistics}}, INPUTS, origins=False)


@pytest.mark.parametrize(("statistics", "epsilon", "made_here"), [(FRESH, 1e-5, False), (KEPT, 1e-1, True)])
def test_an_error_is_made_by_a_norm_where_its_statistics_agree(
    statistics: Any, epsilon: float, made_here: bool
) -> None:
    found = gs.compare(captured(KEPT), captured(statistics, epsilon=epsilon))
    first = found.first_divergence.forward
    assert first is not None
    assert (first.name, first.made_here) == ("norm", made_here)
    assert ("The runs start from different state" in found.sentence) is not made_here
