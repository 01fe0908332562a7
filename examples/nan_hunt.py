"""A loss that is finite, and a gradient that is NaN: which operation, in which line, and what to do?

    python examples/nan_hunt.py

The distance between two points has no derivative where they are the same. Here one pair in 64 is, and `where` replaces
its distance; its gradient is NaN all the same, and makes the gradient of every parameter NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import gradscope as gs

Variables = dict[str, jax.Array]
Batch = dict[str, jax.Array]


def draw(key: jax.Array) -> Batch:
    first, second = jax.random.normal(key, (2, 64, 3))
    return {"first": first, "second": second.at[17].set(first[17])}


def loss(variables: Variables, batch: Batch) -> jax.Array:
    with jax.named_scope("embed"):
        difference = (batch["first"] - batch["second"]) @ variables["kernel"]
    with jax.named_scope("distance"):
        squared = (difference**2).sum(axis=1)
        distance = jnp.where(squared > 0, jnp.sqrt(squared), 0.0)
    return distance.mean()


def repaired(variables: Variables, batch: Batch) -> jax.Array:
    with jax.named_scope("embed"):
        difference = (batch["first"] - batch["second"]) @ variables["kernel"]
    with jax.named_scope("distance"):
        squared = (difference**2).sum(axis=1)
        apart = squared > 0
        distance = jnp.where(apart, jnp.sqrt(jnp.where(apart, squared, 1.0)), 0.0)
    return distance.mean()


def main() -> None:
    variables, batch = {"kernel": jax.random.normal(jax.random.key(0), (3, 4))}, draw(jax.random.key(1))
    dump = gs.capture(loss, variables, batch)
    broken = dump.stats("param_grad/kernel").nan
    print(f"loss {dump.loss:.4f}; {broken} of {dump['param_grad/kernel'].size} elements of the gradient are NaN")
    for origin in dump.origins:
        print(f"origin: {origin.name} ({origin.source}) {origin.why}")
        print(f"repair: {origin.repair}")
    left = [finding.rule for finding in gs.capture(repaired, variables, batch).findings()]
    print(f"repaired: findings {left or 'none'}")


if __name__ == "__main__":
    main()
