"""Another reduction in the place of a mean or a maximum is told, also of what only the layer behind it reads."""

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
from tests.support.ports.port import captured
from tests.support.sampled import sampled

DRAW = np.random.default_rng(23)
IMAGE = DRAW.normal(size=(4, 4, 6, 5)).astype(np.float32)
WEIGHTS = {
    "mix": DRAW.normal(size=(5, 5)).astype(np.float32),
    "scale": (1 + DRAW.normal(size=5) / 4).astype(np.float32),
    "out": DRAW.normal(size=(5, 3)).astype(np.float32),
}


def _network(pool: Any, *, names: tuple[str, ...], norm: bool = False, window: str = "", epsilon: float = 1e-5) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(names[0]):
            x = jnp.tanh(batch["x"] @ weights["mix"])
        if window:
            with jax.named_scope(names[1]):
                start, function = (-jnp.inf, lax.max) if window == "maximum" else (0.0, lax.add)
                x = lax.reduce_window(x, start, function, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                x = x if window == "maximum" else x / 4
        x = pool(x)
        if norm:
            with jax.named_scope(names[2]):
                x = x - x.mean(-1, keepdims=True)
                x = x / jnp.sqrt(x.var(-1, keepdims=True) + epsilon) * weights["scale"]
        with jax.named_scope(names[3]):
            x = x @ weights["out"]
        return jnp.square(x).mean()

    weights = {name: value for name, value in WEIGHTS.items() if norm or name != "scale"}
    return captured((loss, weights, {"x": IMAGE}))


ONE, OTHER = ("mixed", "pool", "norm", "out"), ("Dense_0", "Pool_0", "Norm_0", "Dense_1")


@pytest.mark.slow
@sampled(
    ("pool", "words"),
    [(lambda x: x.max((1, 2)), "maximum"), (lambda x: x[:, 0, 0], "first")],
)
@pytest.mark.parametrize("norm", [False, True])
def test_what_a_layer_reads_of_an_image_is_told(pool: Any, words: str, norm: bool) -> None:
    one = _network(lambda x: x.mean((1, 2)), names=ONE, norm=norm)
    found = gs.compare(one, _network(pool, names=OTHER, norm=norm))
    layer = "norm" if norm else "out"
    assert found.sentence.startswith(f"Forward first differs at `{layer}` ("), found.sentence
    assert f"it reads the {words} over the axes [1, 2] of `mixed`, and the reference the mean" in found.sentence


@pytest.mark.slow
def test_what_a_layer_makes_of_a_mean_before_it_reads_it_is_told() -> None:
    one = _network(lambda x: x.mean((1, 2)), names=ONE)
    found = gs.compare(one, _network(lambda x: 2 * x.mean((1, 2)) - 1, names=OTHER)).sentence
    mean = "the mean over the axes [1, 2] of `mixed`"
    assert f"it reads 2 times {mean} less 1, and the reference {mean}" in found, found


@pytest.mark.slow
def test_another_pool_is_told() -> None:
    one, other = (
        _network(lambda x: x.reshape(4, -1, 5)[:, 1], names=ONE, window=window) for window in ("mean", "maximum")
    )
    assert "it is the maximum of `mixed`, and in the reference the mean" in gs.compare(one, other).sentence
    assert gs.compare(one, _network(lambda x: x.reshape(4, -1, 5)[:, 1], names=OTHER, window="mean"))


@pytest.mark.slow
def test_a_pool_that_one_program_has_an_entry_for_is_told_before_the_layer_that_reads_it() -> None:
    def mean(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4

    one = _network(lambda x: x, names=ONE, window="maximum")
    found = gs.compare(one, _network(mean, names=OTHER)).sentence
    assert found.startswith("Forward first differs at `pool`, only in the reference, and next at `out` ("), found


def test_what_is_read_is_told_where_a_step_of_one_program_alone_is_not_known_in_the_other() -> None:
    def mean_of_relu(x: Any) -> Any:
        return lax.reduce_window(jax.nn.relu(x), 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4

    one = _network(lambda x: x, names=ONE, window="maximum")
    found = gs.compare(one, _network(mean_of_relu, names=OTHER)).sentence
    assert found.startswith("Forward first differs at `pool`, only in the reference, and next at `out` ("), found
    read = "the mean of windows of the relu of `mixed`, and the reference the maximum of windows of `mixed`"
    assert f"; it reads {read}; `Dense_1` in the candidate)" in found, found


@pytest.mark.slow
def test_another_function_before_a_mean_that_no_program_has_an_entry_for_is_told() -> None:
    def mean_of(function: Any, names: tuple[str, ...]) -> Dump:
        return _network(lambda x: function(x).mean((1, 2)), names=names)

    def exact(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    one = mean_of(exact, ONE)
    assert gs.compare(one, mean_of(exact, OTHER))
    found = gs.compare(one, mean_of(jax.nn.silu, OTHER)).sentence
    assert found.startswith("Forward first differs at `out` ("), found
    read = "mean over the axes [1, 2] of the {} of `mixed`"
    assert f"it reads the {read.format('silu')}, and the reference the {read.format('gelu by erf')}" in found, found
    unknown = gs.compare(one, mean_of(lambda x: x * jnp.cos(x), OTHER)).sentence
    assert unknown.startswith("Forward first differs at `out` ("), unknown
    assert "; it reads" not in unknown, unknown


def test_what_differs_in_norms_behind_the_same_reduction_is_told() -> None:
    one = _network(lambda x: x.mean((1, 2)), names=ONE, norm=True)
    found = gs.compare(one, _network(lambda x: x.mean((1, 2)), names=OTHER, norm=True, epsilon=0.01))
    assert ", made here; it adds 1.0e-2 to the variance, and the reference 1.0e-5" in found.sentence


@cache
def _flattened(kind: str, *, port: bool) -> Dump:
    """A dense layer that reads a pooled image, flattened; the port has the channels last."""
    drawn = np.random.default_rng(6).normal
    kernel, out, image = drawn(size=(3, 3, 3, 5)), drawn(size=(5, 3, 2, 4)), drawn(size=(4, 6, 4, 3))

    def loss(weights: Any, batch: Any) -> Any:
        order = ("NHWC", "HWIO", "NHWC") if port else ("NCHW", "OIHW", "NCHW")
        with jax.named_scope("Conv_0" if port else "conv"):
            x = lax.conv_general_dilated(batch["x"], weights["conv"], (1, 1), "SAME", dimension_numbers=order)
        x = jax.nn.relu(x)
        start, function = (-jnp.inf, lax.max) if kind == "max" else (0.0, lax.add)
        window = (1, 2, 2, 1) if port else (1, 1, 2, 2)
        x = lax.reduce_window(x, start, function, window, window, "VALID") / (4 if kind == "mean" else 1)
        x = x.reshape(4, -1)
        with jax.named_scope("Dense_0" if port else "fc"):
            x = x @ weights["out"] if port else x @ weights["out"].T
        return jnp.square(jnp.sin(x)).mean()

    weights = {
        "conv": kernel if port else kernel.transpose(3, 2, 0, 1),
        "out": out.transpose(1, 2, 0, 3).reshape(30, 4) if port else out.reshape(30, 4).T,
    }
    arrays = jax.tree.map(lambda each: np.ascontiguousarray(each, np.float32), weights)
    return captured((loss, arrays, {"x": np.float32(image if port else image.transpose(0, 3, 1, 2))}))


@pytest.mark.slow
def test_another_pool_is_told_before_an_image_is_flattened() -> None:
    one = _flattened("max", port=False)
    assert gs.compare(one, _flattened("max", port=True))
    for kind, words in (("mean", "mean"), ("sum", "sum")):
        sentence = gs.compare(one, _flattened(kind, port=True)).sentence
        assert sentence.startswith("Forward first differs at `fc` ("), sentence
        told = f"it reads the {words} of windows of the relu of `conv`, and the reference the maximum of windows of"
        assert told in sentence, sentence


@pytest.mark.slow
def test_a_maximum_is_of_what_the_other_program_takes_the_mean_of() -> None:
    def pooled(name: str, names: tuple[str, ...]) -> Dump:
        return _network(lambda x: getattr(jax.nn.relu(x), name)((1, 2)), names=names)

    found = gs.compare(pooled("mean", ONE), pooled("max", OTHER)).sentence
    # No maximum is below zero, so that it is the same with the function and without it.
    of = "over the axes [1, 2] of the relu of `mixed`"
    assert f"it reads the maximum {of}, and the reference the mean {of};" in found, found
    found = gs.compare(pooled("max", ONE), pooled("mean", OTHER)).sentence
    assert f"it reads the mean {of}, and the reference the maximum {of};" in found, found
