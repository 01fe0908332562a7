"""Stacks are paired with their parts by when both programs use them, where the values show nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from tests.support.sampled import sampled

WIDTH, LAYERS = 6, 3
NORMS, KERNELS = ("norm_in", "norm_out"), ("up", "down")

_draw = np.random.default_rng(0).normal
KERNEL = {name: _draw(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / 2 for name in KERNELS}
X = _draw(size=(5, WIDTH)).astype(np.float32)
HEAD = _draw(size=(WIDTH, 4)).astype(np.float32)


def _norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale[None, :]


def _layer(x: Any, weights: Any, names: Any, slope: Any = 1.0) -> Any:
    """Returns a block of two residual connections, each a norm before a kernel."""
    for norm, kernel in zip(names[:2], names[2:], strict=True):
        with jax.named_scope(norm):
            read = _norm(x, weights[norm])
        with jax.named_scope(kernel):
            x = x + slope * jnp.tanh(read @ weights[kernel])
    return x


@cache
def _unrolled() -> gs.Dump:
    names = ("a", "b", "first", "second")

    def loss(weights: Any, x: Any) -> Any:
        for number in range(LAYERS):
            with jax.named_scope(f"layers/{number}"):
                x = _layer(x, weights["layers"][number], names)
        with jax.named_scope("last"):
            x = _norm(x, weights["last"])
        with jax.named_scope("head"):
            return ((x @ weights["head"]) ** 2).mean()

    ones = jnp.ones(WIDTH)
    layers = [
        {"a": ones, "b": ones, "first": KERNEL["up"][number], "second": KERNEL["down"][number]}
        for number in range(LAYERS)
    ]
    return gs.capture(loss, {"layers": layers, "last": ones, "head": HEAD}, X)


def _scanned(slope: float = 1.0, **changed: Any) -> gs.Dump:
    names = (*NORMS, *KERNELS)

    def loss(weights: Any, x: Any) -> Any:
        def body(x: Any, layer: Any) -> Any:
            with jax.named_scope("block"):
                return _layer(x, layer, names, slope), None

        x, _ = lax.scan(body, x, weights["block"])
        with jax.named_scope("final"):
            x = _norm(x, weights["final"])
        with jax.named_scope("logits"):
            return ((x @ weights["logits"]) ** 2).mean()

    ones = jnp.ones((LAYERS, WIDTH))
    block = {**dict.fromkeys(NORMS, ones), **KERNEL, **changed}
    return gs.capture(loss, {"block": block, "final": jnp.ones(WIDTH), "logits": HEAD}, X)


def _pairs(comparison: gs.Comparison) -> dict[str, str]:
    """Returns the counterparts of parameters, by the name of the reference, or of a stack by that of the candidate."""
    return {row.name: str(row.counterpart) for row in comparison.rows if row.family == "param"}


@pytest.mark.slow
@sampled("turned", [False, True])
def test_scales_of_one_are_those_of_the_norms_in_the_same_place_though_all_gradients_differ(turned: bool) -> None:
    dumps = (_unrolled(), _scanned(slope=1.1))
    comparison = gs.compare(*(reversed(dumps) if turned else dumps))
    found = _pairs(comparison)
    for norm, name in zip(NORMS, ("a", "b"), strict=True):
        parts = [f"layers/{number}/{name}" for number in range(LAYERS)]
        whole = {f"block/{norm}": ", ".join(parts)}
        apart = dict.fromkeys(parts, f"block/{norm}")
        assert whole.items() <= found.items() or apart.items() <= found.items()
    assert found.get("last") == "final" or found.get("final") == "last"
    assert "in addition" not in comparison.sentence


def test_a_slice_that_is_that_of_another_layer_is_named() -> None:
    wrong = KERNEL["down"].copy()
    wrong[1] = wrong[0]
    sentence = gs.compare(_unrolled(), _scanned(down=wrong)).sentence
    assert "`layers/1/second`; it has the values of `layers/0/second`" in sentence
    assert "Forward first differs at `layers/1/second`" in sentence
