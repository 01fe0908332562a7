"""Parts of a packed tensor whose order in it nothing shows are not compared element by element in some order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

# Each feature is read as it is, and as several functions of it, each with a coefficient.
FEATURES, FUNCTIONS, WIDTH = 4, 3, 5
_draw = np.random.default_rng(6).normal
BASE = _draw(size=(FEATURES, WIDTH)).astype(np.float32)
COEFFICIENTS = _draw(size=(WIDTH, FEATURES, FUNCTIONS)).astype(np.float32)
HEAD, X = _draw(size=(WIDTH, 2)).astype(np.float32), _draw(size=(3, FEATURES)).astype(np.float32)


def _functions(x: Any) -> Any:
    return jnp.exp(-jnp.square(x[..., None] - jnp.linspace(-1.0, 1.0, FUNCTIONS)[None, None]))


def _head(weights: Any, x: Any) -> Any:
    with jax.named_scope("head"):
        return jnp.square(x @ weights["head"]).mean()


def _apart() -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("kan"):
            base = jnp.tanh(batch["x"]) @ weights["kan"]["base"]
            x = base + jnp.einsum("big,oig->bo", _functions(batch["x"]), weights["kan"]["coef"])
        return _head(weights, x)

    weights = {"kan": {"base": BASE, "coef": COEFFICIENTS}, "head": HEAD}
    return gs.capture(loss, weights, {"x": X}, origins=False)


def _packed() -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        functions = _functions(batch["x"]).reshape(len(X), -1)
        with jax.named_scope("kan"):
            x = jnp.concatenate([jnp.tanh(batch["x"]), functions], -1) @ weights["kan"]["kernel"]
        return _head(weights, x)

    spline = COEFFICIENTS.transpose(1, 2, 0).reshape(-1, WIDTH)
    weights = {"kan": {"kernel": np.concatenate([BASE, spline])}, "head": HEAD}
    return gs.capture(loss, weights, {"x": X}, origins=False)


@pytest.mark.parametrize("packed_first", [False, True])
def test_parts_that_are_packed_in_no_known_order_are_not_called_different(packed_first: bool) -> None:
    found = gs.compare(*((_packed(), _apart()) if packed_first else (_apart(), _packed())))
    assert [row.name for row in found.rows if row.status == "different"] == [], found.sentence
    assert "different parameters" not in found.sentence
