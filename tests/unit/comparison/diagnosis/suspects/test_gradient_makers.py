"""A gradient that first differs is made in the layer that returns it, or by code without a scope that it passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

Function = Callable[[Any], Any]

PARAMS = {
    name: np.random.default_rng(seed).normal(size=(6, 6)).astype(np.float32) / 2
    for seed, name in enumerate(("one", "two", "three"))
}
BATCH = {"x": np.random.default_rng(9).normal(size=(8, 6)).astype(np.float32)}


def _same(x: Any) -> Any:
    return x


def _half(x: Any) -> Any:
    return 0.5 * x + jax.lax.stop_gradient(0.5 * x)


def _cut(x: Any) -> Any:
    """Stops the gradient of one feature."""
    return x.at[:, 0].set(jax.lax.stop_gradient(x[:, 0]))


def _turned(x: Any) -> Any:
    """Sends the gradient back with the other sign."""
    return 2 * jax.lax.stop_gradient(x) - x


def network(params: Any, batch: Any, *, between: Function = _same, inside: Function = _same) -> Any:
    """Three layers, and a function without a scope before the last."""
    x = batch["x"]
    for name in ("one", "two"):
        with jax.named_scope(name):
            x = x @ params[name]
    x = between(jnp.tanh(x))
    with jax.named_scope("three"):
        x = inside(x) @ params["three"]
    return jnp.square(x).mean()


@cache
def _captured(between: Function = _same, inside: Function = _same) -> Dump:
    return gs.capture(partial(network, between=between, inside=inside), PARAMS, BATCH, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("between", "inside", "made"),
    [
        (_half, _same, "made between `two` and `three`"),
        (_cut, _same, "made between `two` and `three`"),
        (_same, _half, "made in `three`"),
        (_same, _cut, "made in `three`"),
        # A turned sign leaves the root mean square as it is.
        (_turned, _same, "made in `three` or between `two` and it"),
        (_same, _turned, "made in `three` or between `two` and it"),
    ],
)
def test_the_layer_is_told_from_the_code_before_it(between: Function, inside: Function, made: str) -> None:
    sentence = gs.compare(_captured(), _captured(between, inside)).sentence
    assert "backward first differs at `two`" in sentence
    assert f", {made}" in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("between", "inside", "made"),
    [
        (_cut, _same, "made in `two` or between `one` and `three`"),
        (_same, _cut, "made in `three`"),
        # Of a sum of two terms, the one with the wrong sign does not show.
        (_turned, _same, "made in `two`, `three` or between `one` and `three`"),
    ],
)
def test_layers_that_read_one_value_are_told_apart(between: Function, inside: Function, made: str) -> None:
    def loss(params: Any, batch: Any, *, between: Function = _same, inside: Function = _same) -> Any:
        with jax.named_scope("one"):
            x = batch["x"] @ params["one"]
        with jax.named_scope("two"):
            y = jnp.tanh(x) @ params["two"]
        x = between(jnp.sin(x))
        with jax.named_scope("three"):
            z = inside(x) @ params["three"]
        return jnp.square(y).mean() + jnp.square(z).mean()

    right, wrong = (
        gs.capture(each, PARAMS, BATCH, origins=False) for each in (loss, partial(loss, between=between, inside=inside))
    )
    sentence = gs.compare(right, wrong).sentence
    assert "backward first differs at `one`" in sentence
    assert f", {made}" in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("residual", "inside", "made"),
    [
        (jax.lax.stop_gradient, _same, "it is the reference's less the gradient of `block`)"),
        (_same, _cut, "made in `block`, `block/two`)"),
    ],
)
def test_a_residual_around_a_layer_is_told_from_the_layer(residual: Function, inside: Function, made: str) -> None:
    def loss(params: Any, batch: Any, *, residual: Function = _same, inside: Function = _same) -> Any:
        with jax.named_scope("one"):
            x = batch["x"] @ params["one"]
        x = jnp.sin(batch["x"]) + x
        with jax.named_scope("block"):
            with jax.named_scope("two"):
                y = jnp.tanh(inside(x) @ params["two"])
            x = residual(x) + y
        return jnp.square(jnp.sin(x) @ params["three"]).mean()

    right, wrong = (
        gs.capture(each, PARAMS, BATCH, origins=False)
        for each in (loss, partial(loss, residual=residual, inside=inside))
    )
    sentence = gs.compare(right, wrong).sentence
    assert "backward first differs at `one`" in sentence
    assert made in sentence


def test_a_layer_is_not_at_fault_whose_value_goes_on_to_others() -> None:
    def loss(params: Any, batch: Any, *, between: Function = _same) -> Any:
        with jax.named_scope("one"):
            x = batch["x"] @ params["one"]
        x = x + jnp.sin(batch["x"])
        with jax.named_scope("two"):
            y = x @ params["two"]
        with jax.named_scope("side"):
            z = jnp.tanh(y)
        z = jnp.cos(between(x)) + z
        with jax.named_scope("three"):
            z = z @ params["three"]
        return jnp.square(y).mean() + jnp.square(z).mean()

    right, wrong = (
        gs.capture(each, PARAMS, BATCH, origins=False) for each in (loss, partial(loss, between=jax.lax.stop_gradient))
    )
    sentence = gs.compare(right, wrong).sentence
    assert "backward first differs at `one`" in sentence
    assert ", made in `two`, `three` or between `one` and them" in sentence


@pytest.mark.slow
def test_a_branch_that_was_not_taken_made_nothing() -> None:
    def loss(params: Any, batch: Any, *, inside: Function = _same) -> Any:
        def arm(name: str, inside: Function) -> Function:
            def run(x: Any) -> Any:
                with jax.named_scope(name):
                    return inside(x) @ params[name]

            return run

        with jax.named_scope("one"):
            x = batch["x"] @ params["one"]
        return jnp.square(jax.lax.cond(batch["x"].sum() < 1e9, arm("two", inside), arm("three", _same), x)).mean()

    right, wrong = (gs.capture(partial(loss, inside=each), PARAMS, BATCH, origins=False) for each in (_same, _cut))
    assert (
        "backward first differs at `one` (rel_l2 0.29, made in `two`; it differs in the columns [0] alone"
        in gs.compare(right, wrong).sentence
    )


@pytest.mark.slow
def test_a_value_that_agrees_is_not_where_a_value_made_of_it_differs() -> None:
    """The module returns what its last layer returns, and in the candidate a multiple of that."""

    def loss(params: Any, batch: Any, *, factor: float = 1.0) -> Any:
        with jax.named_scope("block"):
            with jax.named_scope("dense"):
                x = batch["x"] @ params["one"]
            x = x if factor == 1 else factor * x
        return jnp.square(x).mean()

    right, wrong = (gs.capture(partial(loss, factor=each), PARAMS, BATCH, origins=False) for each in (1.0, 1.02))
    sentence = gs.compare(right, wrong).sentence
    assert "Forward first differs at `block`" in sentence
    assert "made in `block/dense`" not in sentence


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_what_follows_from_a_value_behind_the_last_layer_of_a_module_is_not_made_anew(backward: bool) -> None:
    def loss(params: Any, batch: Any, *, fault: bool = False) -> Any:
        x = batch["x"]
        for name in ("one", "two", "three"):
            with jax.named_scope(name):
                with jax.named_scope("dense"):
                    x = x @ params[name]
                if fault and name == "two":
                    x = _half(x) if backward else 1.02 * x
        return jnp.square(x).mean()

    right, wrong = (gs.capture(partial(loss, fault=each), PARAMS, BATCH, origins=False) for each in (False, True))
    sentence = gs.compare(right, wrong).sentence
    assert "anew" not in sentence
    assert not backward or "differs at `two/dense` (rel_l2 0.50, made in `two`;" in sentence


@pytest.mark.slow
@pytest.mark.parametrize("read", [False, True])
def test_a_gradient_may_be_made_in_a_loss_that_reads_the_value_beside_a_layer(read: bool) -> None:
    def penalised(params: Any, batch: Any, *, sent: Function, between: Function) -> Any:
        with jax.named_scope("one"):
            x = batch["x"] @ params["one"]
        penalty = jnp.square(sent(x)).mean() if read else 0.0
        x = between(jnp.tanh(x))
        with jax.named_scope("two"):
            x = x @ params["two"]
        return jnp.square(x).mean() + penalty

    def captured(sent: Function = _same, between: Function = _same) -> Dump:
        params = {name: PARAMS[name] for name in ("one", "two")}
        return gs.capture(partial(penalised, sent=sent, between=between), params, BATCH, origins=False)

    fault = captured(jax.lax.stop_gradient) if read else captured(between=_half)
    found = gs.compare(captured(), fault)
    assert found.first_divergence.backward is not None
    assert found.first_divergence.backward.name == "one"
    assert ("made in the loss" in found.sentence) is read, found.sentence
