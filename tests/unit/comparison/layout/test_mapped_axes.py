"""`vmap` leaves its axes where a product puts them, in the layers alone that add nothing to it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import gradscope as gs
from gradscope.comparison import Comparison
from tests.support.data import drawn


def _compared(*, biased: bool) -> Comparison:
    """The comparison of two dense layers with those of a program that maps over both axes of the batch."""
    x = drawn(1, 5, 3, 8)
    kernels = {name: drawn(seed, 8, size) / 3 for seed, (name, size) in enumerate({"q": 8, "out": 4}.items(), 2)}
    biases = {name: drawn(seed, size) / 3 for seed, (name, size) in enumerate({"q": 8, "out": 4}.items(), 4)}
    weights = {name: {"kernel": kernels[name], "bias": biases[name]} for name in kernels}
    turned = {name: {"weight": kernels[name].T, "bias": biases[name]} for name in kernels}
    if not biased:
        del turned["q"]["bias"]

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("q"):
            x = x @ weights["q"]["kernel"] + weights["q"]["bias"]
        x = jnp.tanh(x)
        with jax.named_scope("out"):
            x = x @ weights["out"]["kernel"] + weights["out"]["bias"]
        return jnp.square(x).mean()

    def mapped_loss(weights: Any, x: Any) -> Any:
        def one(x: Any) -> Any:
            with jax.named_scope("q"):
                x = weights["q"]["weight"] @ x + (weights["q"]["bias"] if biased else 0)
            x = jnp.tanh(x)
            with jax.named_scope("out"):
                return weights["out"]["weight"] @ x + weights["out"]["bias"]

        return jnp.square(jax.vmap(jax.vmap(one))(x)).mean()

    with jax.numpy_rank_promotion("allow"):
        dumps = gs.capture(loss, weights, x, origins=False), gs.capture(mapped_loss, turned, x, origins=False)
    return gs.compare(*dumps)


def test_a_product_that_lacks_its_bias_is_compared_in_the_order_of_its_own_axes() -> None:
    assert _compared(biased=True).verdict == "same"
    sentence = _compared(biased=False).sentence
    assert "it adds no bias, and the reference `q/bias`" in sentence, sentence
