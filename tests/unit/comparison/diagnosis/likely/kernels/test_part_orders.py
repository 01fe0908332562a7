"""Queries and keys of one block are exchanged: of its kernel or its bias alone, or of both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.sampled import sampled

WIDTH, TOKENS, BLOCKS = 6, 5, 3
NAMES = ("q", "k", "v")
Array = Any


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(2100 + seed).normal(size=shape).astype(np.float32)


X = drawn(0, 2, TOKENS, WIDTH)
KERNELS = [(drawn(10 + n, 3 * WIDTH, WIDTH) / 3, drawn(20 + n, 3 * WIDTH) / 3) for n in range(BLOCKS)]
OUTS = [drawn(30 + n, WIDTH, WIDTH) / 3 for n in range(BLOCKS)]
BENT = -np.abs(np.arange(TOKENS)[:, None] - np.arange(TOKENS)) * 0.3


def _attended(parts: Sequence[Array], *, bent: bool) -> Array:
    """What is read of three parts; with `bent`, by scores that no usual attention has."""
    q, k, v = parts
    scores = q @ k.swapaxes(1, 2) / WIDTH**0.5
    return jax.nn.softmax(3 * jnp.tanh(scores / 3) + BENT if bent else scores) @ v


@cache
def _reference(*, bent: bool = False) -> gs.Dump:
    weights = {str(n): {"qkv": {"weight": KERNELS[n][0], "bias": KERNELS[n][1]}, "o": OUTS[n]} for n in range(BLOCKS)}

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for n in map(str, range(BLOCKS)):
            with jax.named_scope(f"blocks.{n}"):
                with jax.named_scope("qkv"):
                    y = x @ weights[n]["qkv"]["weight"].T + weights[n]["qkv"]["bias"]
                y = _attended(jnp.split(y, 3, -1), bent=bent)
                with jax.named_scope("o"):
                    x = x + y @ weights[n]["o"].T
        return jnp.square(x).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": X}, origins=False)


@cache
def _ported(exchanged: str, *, packed: bool, bent: bool = False) -> gs.Dump:
    weights: dict[str, Any] = {}
    for n in range(BLOCKS):
        kernels, biases = (np.split(each, 3) for each in KERNELS[n])
        for what, parts in (("kernel", kernels), ("bias", biases)):
            parts[:2] = parts[1::-1] if n == 1 and what in exchanged else parts[:2]
        joined = {"qkv": {"kernel": np.concatenate(kernels).T.copy(), "bias": np.concatenate(biases)}}
        apart = {name: {"kernel": k.T.copy(), "bias": b} for name, k, b in zip(NAMES, kernels, biases, strict=True)}
        weights[f"block_{n}"] = {**(joined if packed else apart), "out": OUTS[n].T.copy()}

    def loss(weights: Any, batch: Any) -> Any:
        def dense(own: Any, name: str, x: Array) -> Array:
            with jax.named_scope(name):
                return x @ own[name]["kernel"] + own[name]["bias"]

        x = batch["x"]
        for n in range(BLOCKS):
            own = weights[f"block_{n}"]
            with jax.named_scope(f"block_{n}"):
                parts = jnp.split(dense(own, "qkv", x), 3, -1) if packed else [dense(own, name, x) for name in NAMES]
                y = _attended(parts, bent=bent)
                with jax.named_scope("out"):
                    x = x + y @ own["out"]
        return jnp.square(x).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": X}, origins=False)


@pytest.mark.slow
@sampled("packed", [True, False], ids=["packed", "apart"])
def test_parts_of_a_kernel_that_have_the_biases_of_others_are_told(*, packed: bool) -> None:
    reference = _reference()
    assert gs.compare(reference, _ported("", packed=packed)).verdict == "same"
    for exchanged in ("kernel", "bias"):
        found = gs.compare(reference, _ported(exchanged, packed=packed))
        assert found.verdict == "different"
        assert found.sentence.startswith("Forward first differs at `blocks.1/qkv`"), found.sentence
        told = "it adds the parts [1, 0, 2] of `1/qkv/bias` to the products of the parts [0, 1, 2] of `1/qkv/weight`"
        assert told in found.sentence
        assert "in what it reads" not in found.sentence


@sampled("packed", [True, False], ids=["packed", "apart"])
def test_parts_in_another_order_than_those_of_other_blocks_are_told_before_an_unknown_attention(
    *, packed: bool
) -> None:
    reference = _reference(bent=True)
    assert gs.compare(reference, _ported("", packed=packed, bent=True)).verdict == "same"
    found = gs.compare(reference, _ported("kernel and bias", packed=packed, bent=True))
    assert found.sentence.startswith("Forward first differs at `blocks.1/o`"), found.sentence
    told = "or in the order of the parts of `blocks.1/qkv`, which is [1, 0, 2] of that of `blocks.0/qkv`."
    assert told in found.sentence


def _joined(*, of_port: bool, order: int = 1) -> gs.Dump:
    """Returns the dump of a norm of two joined images, and of another one behind a kernel, channels first or last."""
    draw = np.random.default_rng(5).normal
    kernels = {"conv1": draw(size=(8, 4)).astype(np.float32), "conv2": draw(size=(4, 3)).astype(np.float32)}
    images = {name: draw(size=(2, 4, 3, 3)).astype(np.float32) for name in ("one", "other")}
    axis = -1 if of_port else 1

    def loss(weights: Any, batch: Any) -> Any:
        x = jnp.concatenate([batch["one"], batch["other"]][::order], axis)
        for number in (1, 2):
            with jax.named_scope(f"n_{number}" if of_port else f"norm{number}"):
                x = x / jnp.sqrt(jnp.square(x).mean(axis, keepdims=True) + 1e-5)
            with jax.named_scope(f"c_{number}" if of_port else f"conv{number}"):
                kernel = weights[f"conv{number}"]
                x = jnp.sin(x @ kernel if of_port else jnp.einsum("nchw,cd->ndhw", x, kernel))
        return jnp.square(x).mean()

    images = {name: image.transpose(0, 2, 3, 1) if of_port else image for name, image in images.items()}
    return gs.capture(loss, kernels, images, origins=False)


def test_the_order_of_parts_is_that_of_no_value_with_other_channels() -> None:
    reference = _joined(of_port=False)
    assert gs.compare(reference, _joined(of_port=True)).verdict == "same"
    found = gs.compare(reference, _joined(of_port=True, order=-1)).sentence
    assert "of that of" not in found, found
    assert "`norm1`, which is [1, 0] of the reference's" in found, found
