"""A loss with a gradient in it: layers return what the backward pass needs, under numbers that are no names."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.ports.port import captured

_draw = np.random.default_rng(5).normal
X = {"x": _draw(size=(5, 6)).astype(np.float32)}
WEIGHTS = {
    name: {key: _draw(size=size).astype(np.float32) for key, size in {"v": (wide, narrow), "g": (narrow,)}.items()}
    for name, wide, narrow in (("first", 6, 8), ("second", 8, 3))
}


def _penalised(how: str) -> Any:
    def normed(weights: Any, name: str, x: Any) -> Any:
        with jax.named_scope(name):
            v, g = weights[name]["v"], weights[name]["g"]
            norm = jnp.sqrt((v**2).sum(1 if how == "axis" and name == "second" else 0, keepdims=True))
            if how == "axis" and name == "second":
                return x @ (v / norm) * g
            return (x @ v) / norm[0] * g if how == "behind the product" else x @ (g * v / norm)

    def loss(weights: Any, batch: Any) -> Any:
        def critic(x: Any) -> Any:
            return normed(weights, "second", jnp.tanh(normed(weights, "first", x))).sum()

        gradient = jax.grad(critic)(batch["x"])
        penalty = (jnp.linalg.norm(gradient, axis=1) - 1) ** 2
        return critic(batch["x"]) + (2.0 if how == "weight" else 1.0) * penalty.mean()

    return loss


@cache
def _dump(how: str) -> Dump:
    return captured((_penalised(how), WEIGHTS, X))


@pytest.mark.slow
def test_a_norm_of_weights_may_be_divided_by_behind_the_product() -> None:
    for one, other in (("", "behind the product"), ("behind the product", "")):
        found = gs.compare(_dump(one), _dump(other))
        assert found, found.sentence


@pytest.mark.parametrize(
    ("how", "said"), [("axis", "first differs at `second"), ("weight", "first differs at the loss")]
)
def test_a_fault_in_it_is_told_at_its_place(how: str, said: str) -> None:
    for reference in ("", "behind the product"):
        found = gs.compare(_dump(reference), _dump(how))
        assert not found
        assert said in found.sentence, found.sentence


@cache
def _piecewise(*, stopped: bool, slope: float) -> Dump:
    """A penalty on the gradient of a critic that is linear around almost every point."""

    def loss(weights: Any, batch: Any) -> Any:
        def critic(x: Any) -> Any:
            for name in ("first", "second"):
                with jax.named_scope(name):
                    x = x @ weights[name]["v"]
                # JAX has no gradient of a comparison, and one of zero of a product with zero.
                x = jnp.where(x >= 0, x, slope * x) if stopped else jnp.where(x >= 0, 1.0, slope) * x + 0.0 * x**3
            return x.sum()

        penalty = (jnp.linalg.norm(jax.grad(critic)(batch["x"]), axis=1) - 1) ** 2
        return penalty.mean()

    return captured((loss, WEIGHTS, X))


@pytest.mark.parametrize("slope", [0.2, 0.25])
def test_no_gradient_is_one_of_zero(slope: float) -> None:
    dumps = _piecewise(stopped=False, slope=0.2), _piecewise(stopped=True, slope=slope)
    for one, other in (dumps, dumps[::-1]):
        found = gs.compare(one, other)
        assert found.verdict == ("same" if slope == 0.2 else "different"), found.sentence
        assert "no gradient arrives" not in found.sentence
