"""A loop with a module of Equinox; the three lines that are marked are what a probe changes.

python examples/loops/equinox_module.py [FOLDER]
"""

from __future__ import annotations

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import gradscope as gs

probe = gs.Probe(sys.argv[1] if len(sys.argv) > 1 else "run", every=5)  # 1
tx = optax.adam(1e-2)
params, static = eqx.partition(eqx.nn.MLP(4, 1, 16, 1, key=jax.random.key(0)), eqx.is_inexact_array)


def loss(params: Any, batch: Any) -> Any:
    net = eqx.combine(params, static)
    return jnp.mean((jax.vmap(net)(batch["x"]) - batch["y"]) ** 2)


def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
    value, grads = probe.value_and_grad(loss)(params, batch)  # 2, in place of jax.value_and_grad
    updates, opt_state = tx.update(grads, opt_state, params)
    probe.record(updates=updates, opt_state=opt_state)
    return eqx.apply_updates(params, updates), opt_state, value


step = probe.jit(train_step, donate_argnums=(0, 1))  # 3, in place of jax.jit

opt_state = tx.init(params)
with probe:
    for number in range(20):
        x = jax.random.normal(jax.random.key(number), (32, 4))
        params, opt_state, value = step(params, opt_state, {"x": x, "y": x[:, :1]})
