"""The MLP and its spirals."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from models import mlp


def test_points_lie_near_their_spiral() -> None:
    batch = mlp.batch(jax.random.key(0), 200)
    radius = np.linalg.norm(batch["point"], axis=1)
    angle = 2 * math.pi * mlp.ITERATIONS * radius + math.pi * np.asarray(batch["spiral"])
    on_spiral = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    # Noise along the radius turns into an angle, at most by 2 pi TURNS at radius 1.
    assert np.abs(batch["point"] - on_spiral).max() < 6 * mlp.NOISE * 2 * math.pi * mlp.ITERATIONS
    assert set(np.asarray(batch["spiral"]).tolist()) == {0, 1}


def test_the_network_can_learn_to_distinguish_them() -> None:
    batch = mlp.batch(jax.random.key(0), 64)

    def step(_: int, variables: dict) -> dict:
        return jax.tree.map(lambda v, g: v - 0.5 * g, variables, jax.grad(mlp.loss)(variables, batch))

    variables = jax.lax.fori_loop(0, 1000, step, mlp.init(jax.random.key(1)))
    found = jnp.argmax(mlp.forward(variables, batch), axis=1)
    assert (np.asarray(found) == np.asarray(batch["spiral"])).mean() > 0.95
