"""A loop in plain JAX with optax; the three lines that are marked are what a probe changes.

python examples/loops/plain_optax.py [FOLDER]
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradscope as gs

probe = gs.Probe(sys.argv[1] if len(sys.argv) > 1 else "run", every=5)  # 1
tx = optax.adam(1e-2)


def loss(params: Any, batch: Any) -> jax.Array:
    with jax.named_scope("hidden"):
        hidden = jnp.tanh(batch["x"] @ params["hidden"])
    with jax.named_scope("head"):
        return jnp.mean((hidden @ params["head"] - batch["y"]) ** 2)


def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
    value, grads = probe.value_and_grad(loss)(params, batch)  # 2, in place of jax.value_and_grad
    updates, opt_state = tx.update(grads, opt_state, params)
    probe.record(updates=updates, opt_state=opt_state)
    return optax.apply_updates(params, updates), opt_state, value


step = probe.jit(train_step, donate_argnums=(0, 1))  # 3, in place of jax.jit

one, two = jax.random.split(jax.random.key(0))
params: Any = {"hidden": jax.random.normal(one, (4, 16)), "head": jax.random.normal(two, (16, 1)) / 4}
opt_state = tx.init(params)
with probe:
    for number in range(20):
        x = jax.random.normal(jax.random.key(number), (32, 4))
        params, opt_state, value = step(params, opt_state, {"x": x, "y": x[:, :1]})
