"""The noise of gradients against its closed form, and against the gradients of all examples in NumPy's float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.data import drawn

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

WIDTH, EXAMPLES, BATCHES, SIGMA = 5, 32, 400, 0.7
AWAY = np.array([1.0, -0.5, 0.25, 0.0, 2.0])


def squares(params: Any, batch: Any) -> Any:
    return 0.5 * jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


@pytest.fixture(scope="module")
def measured() -> Any:
    """The noise of 400 independent batches of linear regression: x is N(0, I), y is N(0, 0.7), w is off by `AWAY`."""
    step = gs.train_step(squares, "sgd(0.1)")
    state = step.init({"w": jnp.asarray(AWAY, jnp.float32)})

    def one(key: Any) -> Any:
        inputs, noise = jax.random.split(key)
        x = jax.random.normal(inputs, (EXAMPLES, WIDTH))
        return step.gradient_noise(state, {"x": x, "y": SIGMA * jax.random.normal(noise, (EXAMPLES,))})

    return jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(3), BATCHES))


@pytest.mark.slow
def test_variance_and_signal_are_those_of_the_closed_form(measured: Any) -> None:
    # The gradient of an example is x (x.d - e): its mean is d, its covariance (|d|^2 + s^2) I + d d^T.
    square = AWAY @ AWAY
    expected = {"variance": WIDTH * (square + SIGMA**2) + square, "signal": square}
    for name, value in expected.items():
        found = np.asarray(getattr(measured, name)["w"], np.float64)
        error = found.std(ddof=1) / np.sqrt(BATCHES)
        assert error < 0.05 * value  # so that the next line can fail
        assert abs(found.mean() - value) < 4 * error
    scale = float(np.mean(measured.total_variance)) / float(np.mean(measured.total_signal))
    assert scale == pytest.approx(expected["variance"] / square, rel=0.1)


@pytest.mark.slow
def test_noise_is_that_of_the_gradients_of_all_examples() -> None:
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(12, WIDTH)).astype(np.float32), "y": rng.normal(size=12).astype(np.float32)}
    params = {"w": jnp.asarray(AWAY, jnp.float32), "unused": jnp.ones(2)}
    step = gs.train_step(squares, "sgd(0.1)")
    x, y = (np.asarray(batch[name], np.float64) for name in ("x", "y"))
    each = x * (x @ AWAY - y)[:, None]
    for size in (1, 3):
        noise = jax.jit(step.gradient_noise, static_argnames="group_size")(step.init(params), batch, group_size=size)
        gradients = each.reshape(-1, size, WIDTH).mean(1)
        groups, variance, mean = len(gradients), gradients.var(0, ddof=1), gradients.mean(0)
        assert (noise.groups, noise.group_size) == (groups, size)
        assert float(noise.variance["w"]) == pytest.approx(size * variance.sum(), rel=1e-5)
        assert float(noise.signal["w"]) == pytest.approx((mean**2 - variance / groups).sum(), rel=1e-4)
        ratio = ((groups - 3) / (groups - 1) * mean**2 / variance - 1 / groups) / size
        assert float(noise.gsnr["w"]) == pytest.approx(ratio.mean(), rel=1e-4)
        assert (int(noise.varying["w"]), int(noise.varying["unused"])) == (WIDTH, 0)
        assert np.isnan(noise.gsnr["unused"])
        assert float(noise.coupling) < 1e-5


@pytest.mark.slow
def test_the_gsnr_of_normal_gradients_is_unbiased() -> None:
    # The gradient of an example is x itself, which is N(m, s^2) per element.
    mean, deviation, examples = np.array([1.0, 0.3, 0.0]), np.array([0.5, 1.0, 2.0]), 8
    step = gs.train_step(lambda params, batch: jnp.mean(batch @ params), "sgd(0.1)")
    state = step.init(jnp.zeros(3))
    draws = np.random.default_rng(1).normal(mean, deviation, (2000, examples, 3)).astype(np.float32)
    found = np.asarray(
        jax.jit(lambda xs: jax.lax.map(lambda x: step.gradient_noise(state, x), xs))(jnp.asarray(draws)).gsnr["value"]
    )
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - ((mean / deviation) ** 2).mean()) < 4 * error < 0.5


@pytest.mark.slow
def test_a_loss_that_couples_examples_says_so() -> None:
    def normalised(params: Any, batch: Any) -> Any:
        mean, var = batch.mean(0, keepdims=True), batch.var(0, keepdims=True)
        return jnp.mean((params[None] * (batch - mean) / jnp.sqrt(var + 1e-2) - batch) ** 2)

    step = gs.train_step(normalised, "sgd(0.1)")
    state, batch = step.init(jnp.zeros(3)), drawn(0, 64, 3)
    single, larger = (float(step.gradient_noise(state, batch, group_size=size).coupling) for size in (1, 16))
    assert single > 0.5 > larger > 1e-3


@pytest.mark.slow
def test_each_group_draws_its_own_dropout() -> None:
    def dropped(variables: Any, batch: Any) -> Any:
        keep = jax.random.bernoulli(variables["rngs"]["dropout"], 0.5, batch.shape)
        return jnp.mean(jnp.where(keep, batch, 0) @ variables["params"])

    step = gs.train_step(dropped, "sgd(0.1)")
    state = step.init({"params": jnp.ones(3), "rngs": {"dropout": jax.random.key(0)}})
    noise = step.gradient_noise(state, jnp.ones((16, 3)))
    assert float(noise.total_variance) > 0.3  # 3 elements of 1/4 each; equal examples have no other noise


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [((1, 3), 1, "two groups"), ((8, 3), 3, "groups of 3"), ((), 1, "leading axis")],
)
def test_batches_without_groups_are_refused(shape: tuple[int, ...], size: int, message: str) -> None:
    step = gs.train_step(lambda params, batch: jnp.mean(batch) * params.sum(), "sgd(0.1)")
    with pytest.raises(gs.UsageError, match=message):
        step.gradient_noise(step.init(jnp.ones(3)), jnp.ones(shape), group_size=size)
