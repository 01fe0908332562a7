"""A layer that is right in both programs reads another value where its output differs; a wrong one need not."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.suspects.reading.kinds import read_proofs
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered
from tests.support.ports.flax_like import dropout
from tests.support.ports.port import captured
from tests.support.sampled import sampled

DRAW = np.random.default_rng(12)
TOKENS = DRAW.normal(size=(3, 5, 8)).astype(np.float32)
IMAGE = DRAW.normal(size=(3, 6, 6, 4)).astype(np.float32)
BETWEEN = "in what it reads: a step that neither program has an entry for"


def _draw(*shape: int) -> Any:
    return (DRAW.normal(size=shape) / 2).astype(np.float32)


NORMED = {
    "embed": _draw(8, 8),
    "position": _draw(5, 8),
    "scale": 1 + _draw(8) / 4,
    "bias": _draw(8),
    "out": _draw(8, 3),
}


def _normed(between: Any, *, port: bool = False, epsilon: float = 1e-5, plain: bool = False) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "embed"):
            x = jnp.tanh(batch["x"] @ weights["embed"])
        x = between(x, weights["position"])
        with jax.named_scope("LayerNorm_0" if port else "norm"):
            x = x - x.mean(-1, keepdims=True)
            x = x / jnp.sqrt(x.var(-1, keepdims=True) + epsilon) if not plain else x / 1.5
            x = x * weights["scale"] + weights["bias"]
        with jax.named_scope("Dense_1" if port else "out"):
            x = x @ weights["out"]
        return jnp.square(x).mean()

    return captured((loss, NORMED, {"x": TOKENS}))


def test_a_norm_that_is_right_reads_another_value() -> None:
    one = _normed(jnp.add)
    subtracted = "it reads `embed` - `position`, and the reference `embed` + `position`;"
    for between, told in (
        (lambda x, p: x - p, subtracted),
        (lambda x, p: x[:, ::-1] + p, BETWEEN),
        (lambda x, p: x + p[::-1], BETWEEN),
    ):
        found = gs.compare(one, _normed(between, port=True)).sentence
        assert found.startswith("Forward first differs at `norm` ("), found
        assert told in found, found


@pytest.mark.slow
def test_a_norm_that_may_be_wrong_is_blamed_itself() -> None:
    one = _normed(jnp.add)
    assert gs.compare(one, _normed(jnp.add, port=True))
    for fault in ({"epsilon": 1e-1}, {"plain": True}):
        found = gs.compare(one, _normed(jnp.add, port=True, **fault)).sentence
        assert found.startswith("Forward first differs at `norm` ("), found
        assert BETWEEN not in found, found


CONVOLVED = {"first": _draw(3, 3, 4, 4), "second": _draw(3, 3, 4, 5), "bias": _draw(5), "other": _draw(3, 3, 4, 5)}


@cache
def _convolved(fault: str = "", *, port: bool = False) -> Dump:
    def conv(x: Any, kernel: Any) -> Any:
        padding = [(1, 1), (1, 1)]
        return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Conv_0" if port else "first"):
            x = jnp.tanh(conv(batch["x"], weights["first"]))
        x = dropout(x) if fault == "dropout" else x
        x = x - x.mean(-1, keepdims=True) if fault == "centred" else x
        with jax.named_scope("Conv_1" if port else "second"):
            kernel = weights["second"]
            kernel = kernel * jnp.linspace(0.5, 2, 5) if fault == "scaled" else kernel
            kernel = kernel.swapaxes(0, 1) + weights["other"] if fault == "kernel" else kernel
            kernel = (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2)) if fault == "standardised" else kernel
            x = conv(x, kernel)
            x = x + weights["bias"]
            x = x * jnp.linspace(1, 2, 6)[:, None, None] if fault == "position" else x
        return jnp.square(x).mean() + jnp.square(weights["other"]).mean()

    return captured((loss, CONVOLVED, {"x": IMAGE}))


@pytest.fixture(scope="module")
def convolved() -> Dump:
    return _convolved()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dropout", "centred"])
def test_a_convolution_that_is_right_reads_another_value(convolved: Dump, fault: str) -> None:
    found = gs.compare(convolved, _convolved(fault, port=True)).sentence
    assert found.startswith("Forward first differs at `second` ("), found
    assert BETWEEN in found, found


@pytest.mark.slow
@sampled("fault", ["scaled", "kernel", "standardised", "position"])
def test_a_convolution_that_may_be_wrong_is_blamed_itself(convolved: Dump, fault: str) -> None:
    found = gs.compare(convolved, _convolved(fault, port=True)).sentence
    assert found.startswith("Forward first differs at `second` ("), found
    assert "in what it reads" not in found, found


PACKED = {"embed": _draw(8, 8), "qkv": {"kernel": _draw(8, 24), "bias": _draw(24)}, "out": _draw(8, 3)}


@cache
def _packed(*, port: bool, swapped: str = "") -> Dump:
    names = ("Dense_0", "Dense_1", "Dense_2") if port else ("embed", "qkv", "out")
    order = np.r_[8:16, 0:8, 16:24]
    packed = {name: each[..., order] if swapped in (name, "both") else each for name, each in PACKED["qkv"].items()}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(names[0]):
            x = jnp.tanh(batch["x"] @ weights[names[0]])
        with jax.named_scope(names[1]):
            x = x @ weights[names[1]]["kernel"] + weights[names[1]]["bias"]
        query, key, value = jnp.split(x, 3, -1)
        query, key = (key, query) if swapped == "both" else (query, key)
        x = jax.nn.softmax(query @ key.swapaxes(1, 2), -1) @ value
        with jax.named_scope(names[2]):
            x = x @ weights[names[2]]
        return jnp.square(x).mean()

    return captured((loss, dict(zip(names, (PACKED["embed"], packed, PACKED["out"]), strict=True)), {"x": TOKENS}))


def test_a_layer_whose_kernel_has_queries_for_keys_reads_nothing_else() -> None:
    one = _packed(port=False)
    assert gs.compare(one, _packed(port=True, swapped="both"))
    found = gs.compare(one, _packed(port=True, swapped="kernel")).sentence
    assert found.startswith("Forward first differs at `qkv` ("), found
    assert BETWEEN not in found, found


@pytest.mark.parametrize("shape", [(), (3,), (4, 3)])
def test_a_bias_may_be_of_a_layer_that_returns_a_number_or_a_vector(shape: tuple[int, ...]) -> None:
    """Such a layer adds up its product itself: what arrives has no axis that is the bias'."""
    sent, bias = (Recovered(np.ones(each), np.ones(each)) for each in (shape, (3,)))
    assert not read_proofs._are_sums(sent, bias)
