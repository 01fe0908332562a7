"""What a norm reads is no pair with the step of another norm that is read with its scale."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

WIDTH = 6
AXES = {"layer": (2,), "group": (1, 3), "batch": (0, 1)}


@cache
def _residual(kind: str, *, scoped: bool, is_added: bool = True) -> Dump:
    """The dump of a residual block with a norm behind it, in scopes or in lines of functions."""
    vectors = {"scale": 1 + 0.1 * drawn(3, WIDTH), "bias": drawn(4, WIDTH)}
    weights = {"up": drawn(1, WIDTH, WIDTH), "norm": vectors, "out": drawn(5, WIDTH, 2)}

    def norm(w: Any, x: Any) -> Any:
        h = x.reshape(*x.shape[:2], 2, WIDTH // 2) if kind == "group" else x
        mean = h.mean(AXES[kind], keepdims=True)
        variance = jnp.square(h - mean).mean(AXES[kind], keepdims=True)
        h = ((h - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        return h * w["scale"][None, None] + w["bias"][None, None]

    def loss(weights: Any, x: Any) -> Any:
        def scope(name: str) -> Any:
            return jax.named_scope(name) if scoped else nullcontext()

        with scope("block"):
            with scope("up"):
                h = jnp.tanh(x @ weights["up"])
            x = x + h if is_added else h
        with scope("norm"):
            x = norm(weights["norm"], x)
        with scope("out"):
            x = jnp.tanh(x) @ weights["out"]
        return jnp.square(x).mean()

    return gs.capture(loss, weights, drawn(2, 4, 5, WIDTH), origins=False)


@sampled("kind", AXES)
def test_no_step_of_a_norm_is_paired_with_what_the_norm_of_another_program_reads(kind: str) -> None:
    reference = _residual(kind, scoped=True)
    assert gs.compare(reference, _residual(kind, scoped=False)).verdict == "same"
    found = gs.compare(reference, _residual(kind, scoped=False, is_added=False))
    counterparts = {row.name: row.counterpart for row in found.rows if row.family == "activation"}
    assert not (counterparts["block"] or "").startswith("norm"), found.sentence
    assert "`norm` (" in found.sentence.partition(". Backward")[0], found.sentence
