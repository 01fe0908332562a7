"""A loop with `flax.training.TrainState`; the three lines that are marked are what a probe changes.

python examples/loops/flax_train_state.py [FOLDER]
"""

from __future__ import annotations

import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import gradscope as gs

probe = gs.Probe(sys.argv[1] if len(sys.argv) > 1 else "run", every=5)  # 1


class Net(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Returns a prediction."""
        return nn.Dense(1, name="head")(nn.tanh(nn.Dense(16, name="hidden")(x)))


def train_step(state: TrainState, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        out = state.apply_fn({"params": params}, batch["x"])
        return jnp.mean((out - batch["y"]) ** 2), out

    (value, _), grads = probe.value_and_grad(loss, has_aux=True)(state.params)  # 2, in place of jax.value_and_grad
    after = state.apply_gradients(grads=grads)
    probe.record(params=after.params, opt_state=after.opt_state)
    return after, value


step = probe.jit(train_step, donate_argnums=0)  # 3, in place of jax.jit

net = Net()
params = net.init(jax.random.key(0), jnp.ones((1, 4)))["params"]
state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-2))
with probe:
    for number in range(20):
        x = jax.random.normal(jax.random.key(number), (32, 4))
        state, value = step(state, {"x": x, "y": x[:, :1]})
