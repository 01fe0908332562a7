"""A training loop in plain JAX that observes every tenth step.

    python examples/training_loop.py [FOLDER]

Two programs are compiled: the step as it is, and the step that also observes. A step that is not observed costs nothing
more. What was observed is written as one dump for each step; the gradients of the last are put next to those of the
first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import gradscope as gs

STEPS = 41
OBSERVE_EVERY = 10
LEARNING_RATE = 0.1

Variables = dict[str, dict[str, jax.Array]]
Batch = dict[str, jax.Array]


def init(key: jax.Array) -> Variables:
    first, last = jax.random.split(key)
    return {
        "first": {"kernel": jax.random.normal(first, (2, 32)), "bias": jnp.zeros(32)},
        "last": {"kernel": jax.random.normal(last, (32, 1)) / 32**0.5, "bias": jnp.zeros(1)},
    }


def draw(key: jax.Array, size: int = 128) -> Batch:
    """Points of the plane, and the function of them that is to be learnt."""
    x = jax.random.uniform(key, (size, 2), minval=-1.0)
    return {"x": x, "y": jnp.sin(3 * x[:, :1]) * x[:, 1:]}


def loss(variables: Variables, batch: Batch) -> jax.Array:
    with jax.named_scope("first"):
        hidden = jnp.tanh(batch["x"] @ variables["first"]["kernel"] + variables["first"]["bias"])
    with jax.named_scope("last"):
        prediction = hidden @ variables["last"]["kernel"] + variables["last"]["bias"]
    return ((prediction - batch["y"]) ** 2).mean()


def updated(variables: Variables, gradients: Variables) -> Variables:
    return jax.tree.map(lambda value, gradient: value - LEARNING_RATE * gradient, variables, gradients)


@jax.jit
def train_step(variables: Variables, batch: Batch) -> Variables:
    return updated(variables, jax.grad(loss)(variables, batch))


@jax.jit
def observed_step(variables: Variables, batch: Batch) -> tuple[Variables, jax.Array, Any]:
    (value, gradients), seen = gs.value_and_grad(loss)(variables, batch)
    return updated(variables, gradients), value, seen


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    variables = init(jax.random.key(0))
    for step in range(STEPS):
        batch = draw(jax.random.key(step + 1))
        if step % OBSERVE_EVERY:
            variables = train_step(variables, batch)
            continue
        variables, value, seen = observed_step(variables, batch)
        arriving = seen["activation_grad/first"].rms
        print(f"step {step:3}  loss {float(value):.4f}  rms of the gradient at `first` {float(arriving):.2e}")
        gs.save(folder / f"step_{step:03}.npz", seen, force=True)
    with gs.load(folder / "step_000.npz") as before, gs.load(folder / f"step_{STEPS - 1:03}.npz") as after:
        for key in ("param_grad/first/kernel", "param_grad/last/kernel"):
            print(f"{key}: l2 {before.stats(key).l2:.3g} -> {after.stats(key).l2:.3g}")
    print(f"gradscope show {folder / 'step_000.npz'} prints the tables of a step")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
