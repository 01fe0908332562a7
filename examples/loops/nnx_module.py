"""A loop with a module of Flax NNX; the three lines that are marked are what a probe changes.

python examples/loops/nnx_module.py [FOLDER]
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import gradscope as gs

probe = gs.Probe(sys.argv[1] if len(sys.argv) > 1 else "run", every=5)  # 1


class Net(nnx.Module):
    """Two layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(4, 16, rngs=rngs)
        self.head = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Returns a prediction."""
        return self.head(nnx.tanh(self.hidden(x)))


net = Net(nnx.Rngs(0))
graph, state = nnx.split((net, nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)))


def loss(net: Any, batch: Any) -> Any:
    return jnp.mean((net(batch["x"]) - batch["y"]) ** 2)


def train_step(state: Any, batch: Any) -> Any:
    net, optimizer = nnx.merge(graph, state)
    value, grads = probe.value_and_grad(loss)(net, batch)  # 2, in place of nnx.value_and_grad
    optimizer.update(net, grads)
    probe.record(params=net, opt_state=optimizer.opt_state)
    return nnx.state((net, optimizer)), value


step = probe.jit(train_step, donate_argnums=0)  # 3, in place of jax.jit

with probe:
    for number in range(20):
        x = jax.random.normal(jax.random.key(number), (32, 4))
        state, value = step(state, {"x": x, "y": x[:, :1]})
