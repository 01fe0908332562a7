"""Linear regression: every number known in advance."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import linear_regression


def test_there_are_32_points_around_y_equals_3x_plus_2() -> None:
    batch = linear_regression.batch(jax.random.key(0))
    slope, intercept = np.polyfit(batch["x"], batch["y"], deg=1)
    assert batch["x"].shape == (32,)
    assert slope == pytest.approx(3, abs=0.1)
    assert intercept == pytest.approx(2, abs=0.1)


def test_the_gradient_is_the_one_on_paper() -> None:
    variables, batch = {"weight": jnp.array(0.5), "bias": jnp.array(-1.0)}, linear_regression.batch(jax.random.key(0))
    gradient = jax.grad(linear_regression.loss)(variables, batch)
    x, y = np.asarray(batch["x"], np.float64), np.asarray(batch["y"], np.float64)
    residual = 0.5 * x - 1 - y
    assert float(gradient["weight"]) == pytest.approx(2 * np.mean(residual * x), rel=1e-5)
    assert float(gradient["bias"]) == pytest.approx(2 * np.mean(residual), rel=1e-5)


def test_at_the_least_squares_line_there_is_no_gradient(x64: None) -> None:
    batch = linear_regression.batch(jax.random.key(0))
    slope, intercept = np.polyfit(batch["x"], batch["y"], deg=1)
    gradient = jax.grad(linear_regression.loss)({"weight": jnp.array(slope), "bias": jnp.array(intercept)}, batch)
    assert max(abs(gradient["weight"]), abs(gradient["bias"])) < 1e-12
