"""A module of Flax NNX has the same names in the user's own step as in a capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs

nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: pip install 'gradscope-jax[flax]'")

X = jnp.linspace(0.0, 1.0, 8).reshape(2, 4)


class Block(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.linear(x))


class Net(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.blocks = nnx.List([Block(rngs), Block(rngs)])
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def of_net(net: Any, x: Any) -> Any:
    return (net(x) ** 2).mean()


def test_an_nnx_module_has_the_same_names_in_a_step_as_in_a_capture() -> None:
    net = Net(nnx.Rngs(0))
    graph, params = nnx.split(net)

    def merged(params: Any, x: Any) -> Any:
        return of_net(nnx.merge(graph, params), x)

    captured = {key for key in gs.capture(of_net, net, X) if not key.startswith("input")}
    assert {"param_grad/blocks/0/linear/kernel", "activation/blocks/1"} <= captured
    assert set(jax.jit(gs.value_and_grad(merged))(params, X)[1]) == captured
    assert set(gs.value_and_grad(of_net)(net, X)[1]) == captured
    assert set(nnx.jit(lambda net, x: gs.value_and_grad(of_net)(net, x)[1])(net, X)) == captured
    assert vars(net).keys() == vars(Net(nnx.Rngs(0))).keys()  # nothing is left on the module


def test_what_an_alarm_of_an_nnx_loop_saves_has_the_names_of_the_module(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")
    net = Net(nnx.Rngs(0))
    graph, state = nnx.split((net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)))
    probe = gs.Probe(tmp_path / "run", every=1)

    def train_step(state: Any, x: Any) -> Any:
        net, optimizer = nnx.merge(graph, state)
        value, grads = probe.value_and_grad(of_net)(net, x)
        optimizer.update(net, grads)
        return nnx.state((net, optimizer)), value

    step = probe.jit(train_step)
    with probe:
        for x in (X, X * jnp.nan):
            state, _ = step(state, x)
    with gs.load(tmp_path / "run/alarm-000001/state.npz") as saved:
        keys = set(saved)
    assert {key for key in gs.capture(of_net, net, X) if key.startswith("param/")} <= keys
    assert all(key.startswith("param/") or "/1/" in key for key in keys)  # the rest is the optimizer's


def test_a_step_that_changes_a_module_in_place_for_nobody_is_refused(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")
    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)

    def step_of(probe: Any, *, returns: bool) -> Any:
        def train_step(net: Any, optimizer: Any, x: Any) -> Any:
            value, grads = probe.value_and_grad(of_net)(net, x)
            optimizer.update(net, grads)
            return (net, optimizer, value) if returns else value

        return probe.jit(train_step)

    with gs.Probe(tmp_path / "lost") as probe, pytest.raises(gs.UsageError, match="train_step changes param/") as error:
        step_of(probe, returns=False)(net, optimizer, X)
    assert "nnx.split" in str(error.value.__notes__)
    with gs.Probe(tmp_path / "kept") as probe:
        step = step_of(probe, returns=True)
        values = []
        for _ in range(2):
            net, optimizer, value = step(net, optimizer, X)
            values.append(float(value))
    assert values[1] < values[0]
