"""A module of Flax NNX has the same names in the user's own step as in a capture."""

from __future__ import annotations

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
    assert {"param_grad/blocks/0/linear/kernel", "activation/Net/blocks/1"} <= captured
    assert set(jax.jit(gs.value_and_grad(merged))(params, X)[1]) == captured
    assert set(gs.value_and_grad(of_net)(net, X)[1]) == captured
    assert set(nnx.jit(lambda net, x: gs.value_and_grad(of_net)(net, x)[1])(net, X)) == captured
    assert vars(net).keys() == vars(Net(nnx.Rngs(0))).keys()  # nothing is left on the module
