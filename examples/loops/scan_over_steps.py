"""A `lax.scan` over steps; the three lines that are marked are what a probe changes.

    python examples/loops/scan_over_steps.py [FOLDER]

Inside a scan nothing gets out but by being returned: the step returns what it observed, the probe writes it outside.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradscope as gs

probe = gs.Probe(sys.argv[1] if len(sys.argv) > 1 else "run")  # 1
tx = optax.adam(1e-2)


def loss(params: Any, batch: Any) -> jax.Array:
    with jax.named_scope("hidden"):
        hidden = jnp.tanh(batch["x"] @ params["hidden"])
    with jax.named_scope("head"):
        return jnp.mean((hidden @ params["head"] - batch["y"]) ** 2)


def train_step(state: Any, batch: Any) -> Any:
    params, opt_state = state
    (_, grads), seen = gs.value_and_grad(loss)(params, batch)  # 2, in place of jax.value_and_grad
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), seen


epoch = jax.jit(lambda state, batches: jax.lax.scan(train_step, state, batches))

one, two = jax.random.split(jax.random.key(0))
params: Any = {"hidden": jax.random.normal(one, (4, 16)), "head": jax.random.normal(two, (16, 1)) / 4}
state = (params, tx.init(params))
with probe:
    for number in range(0, 20, 5):
        x = jax.random.normal(jax.random.key(number), (5, 32, 4))
        state, seen = epoch(state, {"x": x, "y": x[..., :1]})
        probe.write(number, seen)  # 3
