"""Linear regression, the smallest model with a gradient: find the line y = 3x + 2 behind noisy points.

The model is `prediction = weight * x + bias`, its loss the mean square of `prediction - y`. With the residuals
r = prediction - y the gradient fits on one line,

    d loss / d weight = 2 mean(r x)        d loss / d bias = 2 mean(r)

so every number that a tool reports for this model can be checked by hand.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

SLOPE = 3.0
INTERCEPT = 2.0
NOISE = 0.1  # standard deviation of the points around the line


def init(key: Array) -> dict[str, Array]:
    """Returns a line through the origin with a random slope; both parameters are scalars."""
    return {"weight": jax.random.normal(key), "bias": jnp.zeros(())}


def batch(key: Array, size: int = 32) -> dict[str, Array]:
    """Returns `size` points around the true line, with x between -1 and 1."""
    x_key, noise_key = jax.random.split(key)
    x = jax.random.uniform(x_key, (size,), minval=-1.0, maxval=1.0)
    return {"x": x, "y": SLOPE * x + INTERCEPT + NOISE * jax.random.normal(noise_key, (size,))}


def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
    """Returns the mean squared error of the predicted y."""
    prediction = forward(variables, batch)
    with jax.named_scope("loss"):
        return jnp.square(prediction - batch["y"].astype(prediction.dtype)).mean()


def forward(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
    """Returns the predicted y of each point, [N]."""
    weight, bias = variables["weight"], variables["bias"]
    with jax.named_scope("line"):
        return weight * batch["x"].astype(weight.dtype) + bias
