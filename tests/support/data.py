"""Arrays for tests, made by NumPy: JAX compiles a program for each operation and each shape that data are made by.

For `jnp.asarray`, too, which for an array of NumPy is the identity, compiled.
"""

from __future__ import annotations

import math

import jax
import numpy as np


def evenly(start: float, stop: float, *shape: int) -> jax.Array:
    """Returns numbers of float32 from `start` to `stop`, evenly spaced, in an array of this shape."""
    return jax.device_put(np.linspace(start, stop, math.prod(shape), dtype=np.float32).reshape(shape))


def drawn(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    """Returns normal numbers of float32 with the standard deviation `scale`, in an array of this shape."""
    return jax.device_put(np.random.default_rng(seed).normal(0.0, scale, shape).astype(np.float32))


def filled(value: float, *shape: int) -> jax.Array:
    """Returns an array of float32 of this shape that has one value everywhere."""
    return jax.device_put(np.full(shape, value, np.float32))
