"""Pairs that one block refutes are none in the other blocks either, where a difference is inherited."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs
from gradscope.api.reading import Dump

_DRAW = np.random.default_rng(3).normal
WEIGHTS = {
    **{
        name.format(n): {"kernel": (_DRAW(size=size) / 3).astype(np.float32)}
        for n in range(3)
        for name, size in {
            "up{}": (8, 16),
            "down{}": (16, 8),
            "last{}": (8, 8),
            "first{}": (8, 8),
            "second{}": (8, 8),
        }.items()
    },
    "head": {"kernel": _DRAW(size=(8, 4)).astype(np.float32)},
}
INPUT = _DRAW(size=(3, 6, 8)).astype(np.float32)
MASK = (np.arange(6) < np.array([[6], [4], [3]]))[..., None].astype(np.float32)


@cache
def _program(*, port: bool, wrong: bool = False) -> Dump:
    """Blocks of a feed-forward part and a masked module, whose scope has the residual sum in the port."""

    def loss(weights: Any, x: Any) -> Any:
        def dense(scope: str, name: str, x: Any) -> Any:
            with jax.named_scope(f"{scope}_in" if port else scope):
                return x @ weights[name]["kernel"]

        def module(n: int, x: Any) -> Any:
            y = dense("first", f"first{n}", x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6))
            return dense("second", f"second{n}", jax.nn.silu(y)) * MASK

        for n in range(3):
            with jax.named_scope(f"block_{n}" if port else f"layers/{n}"):
                y = dense("up", f"up{n}", x)
                y = jax.nn.gelu(y) if wrong and n == 1 else jax.nn.silu(y)
                x = x + dense("down", f"down{n}", y)
                with jax.named_scope("conv" if port else "conv_module"):
                    y = module(n, x)
                    x = x + y if port else x
                x = x if port else x + y
                x = x + dense("last", f"last{n}", jnp.tanh(x))
        return jnp.square(dense("head", "head", x)).mean()

    return gs.capture(loss, WEIGHTS, INPUT, origins=False)


def test_error_is_not_made_anew_at_a_pair_that_another_block_refutes() -> None:
    assert gs.compare(_program(port=False), _program(port=True)).verdict == "same"
    found = gs.compare(_program(port=False), _program(port=True, wrong=True))
    assert found.verdict == "different"
    assert "made anew" not in found.sentence, found.sentence
    assert "layers/1/down" in found.sentence
