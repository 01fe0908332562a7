"""A scope of the user's own may have the name of a layer inside a module."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
import flax.linen as fl
import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs
from gradscope.api.reading import Dump

WIDTH = 6


def _drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape, scale=0.6).astype(np.float32)


BATCH = {"x": _drawn(1, 5, WIDTH), "y": _drawn(2, 5, WIDTH)}


class _Net(fl.Module):
    @fl.compact
    def __call__(self, x: Any) -> Any:
        x = fl.tanh(fl.Dense(WIDTH, name="fc1")(x))
        return fl.Dense(WIDTH, name="fc2")(x)


def _network(scope: str = "", *, transposed: bool = False) -> Dump:
    """The dump of a network, behind which a scope of the user's own has a given name."""

    def loss(weights: Any, batch: Any) -> Any:
        if transposed:
            weights = weights | {"fc2": weights["fc2"] | {"kernel": weights["fc2"]["kernel"].T}}
        x = _Net().apply({"params": weights}, batch["x"])
        with jax.named_scope(scope or "error"):
            error = x - batch["y"]
        return jnp.square(error).mean()

    drawn = ((name, seed) for seed, name in enumerate(["fc1", "fc2"]))
    layers = {name: {"kernel": _drawn(seed, WIDTH, WIDTH), "bias": _drawn(seed, WIDTH)} for name, seed in drawn}
    return gs.capture(loss, layers, BATCH, origins=False)


@pytest.mark.parametrize("turned", [False, True])
def test_a_scope_of_the_users_own_is_no_layer_inside_a_root(turned: bool) -> None:
    def compared(one: Dump, other: Dump) -> gs.Comparison:
        return gs.compare(*((other, one) if turned else (one, other)))

    named = _network("fc2")
    found = compared(named, _network())
    assert found.verdict == "same", found.sentence
    faulty = compared(named, _network(transposed=True))
    assert faulty.first_divergence.forward is not None
    assert faulty.first_divergence.forward.name == ("fc2" if turned else "_Net/fc2"), faulty.sentence
