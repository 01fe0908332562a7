"""The floors of a script: a gradient that is zero but for rounding is not wrong, and one that a fault makes is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.capturing.isolate.reproducing.gradient_floors import gradient_floors
from gradscope.capturing.isolate.reproducing.reproduction import reproduce
from gradscope.tracing.loading.model import Model
from tests.oracle.isolation.test_reproduction import ran

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

_BATCH, _LENGTH, _HEADS, _SIZE = 4, 12, 2, 8
_WIDTH = _HEADS * _SIZE


def _params(dtype: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), 9)
    kernel = lambda at: (0.3 * jax.random.normal(keys[at], (_WIDTH, _WIDTH))).astype(dtype)  # noqa: E731
    bias = lambda at: (0.3 * jax.random.normal(keys[at], (_WIDTH,))).astype(dtype)  # noqa: E731
    return {"in": kernel(8), "attn": {each: {"w": kernel(at), "b": bias(at + 4)} for at, each in enumerate("qkvo")}}


def _attention(params: Any, x: Any, fault: str = "", *, one_by_one: bool = False) -> Any:
    """The loss of one attention, in one of two ways, with a fault in the second."""
    with jax.named_scope("in"):
        h = x @ params["in"]
    rising = (jnp.arange(1, _LENGTH + 1)[None, None, None] / _LENGTH).astype(x.dtype)
    dense = lambda c, x: x @ params["attn"][c]["w"] + params["attn"][c]["b"][None, None]  # noqa: E731
    with jax.named_scope("attn"):
        q, k, v = (dense(c, h).reshape(*x.shape[:2], _HEADS, _SIZE) for c in "qkv")
        q = q / jnp.sqrt(jnp.asarray(_SIZE, x.dtype))
        if one_by_one:
            scores = jax.vmap(jax.vmap(lambda q, k: q @ k.T))(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3))
            shares = jnp.exp(scores) / jnp.exp(scores).sum(-1, keepdims=True)
        else:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (rising if fault == "scores" else 1.0)
            shares = jax.nn.softmax(scores, -1)
        out = dense("o", jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape))
    return jnp.mean(jnp.tanh(out) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("fault", ["", "scores"])
def test_the_bias_of_the_keys_is_wrong_only_where_it_is_not_rounding(tmp_path: Path, dtype: Any, fault: str) -> None:
    params, x = _params(dtype), jax.random.normal(jax.random.key(3), (_BATCH, _LENGTH, _WIDTH)).astype(dtype)
    reference = gs.capture(partial(_attention, one_by_one=True), params, x).source
    loss = partial(_attention, fault=fault)
    found = reproduce(Model.of_values("model", loss, params, x), "attn", gs.capture(loss, params, x).source, reference)
    assert [each.name for each in found.gradients if each.floor] == ["k_b"]
    done = ran(tmp_path, found)
    line = next(line for line in done.output.splitlines() if "k_b" in line)
    assert done.errors["vjp", "k_b"] > 0.5
    assert done.status == (1 if fault else 0)
    assert ("WRONG" in line) == bool(fault)
    assert ("zero but for rounding" in line) != bool(fault)


def test_the_floor_of_a_sum_is_above_its_rounding_and_far_below_its_terms() -> None:
    terms = jax.random.normal(jax.random.key(0), (1024, 8))
    terms -= terms.mean(axis=0, keepdims=True)
    wide = np.asarray(terms, np.float64)

    def sums(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        jax.lax.scan(lambda nothing, _: (nothing, None), (), x)  # without results
        inside = jax.jit(lambda x: -x.reshape(4, 256, 8).sum(axis=1))(x)
        return [inside.sum(axis=0), jnp.ones(1024) @ x, x.sum(axis=0) + y, jnp.tanh(x)]

    floors = gradient_floors(sums, [np.asarray(terms), np.zeros(8, np.float32)], "float32")
    assert floors[-1] is None
    for floor, found in zip(floors[:-1], sums(terms, jnp.zeros(8)), strict=False):
        assert floor is not None
        assert floor.terms == 1024
        rounding = np.linalg.norm(np.abs(np.asarray(found, np.float64)) - np.abs(wide.sum(axis=0)))
        assert 0 < rounding < floor.l2 < 1e-4 * np.linalg.norm(wide.ravel())
