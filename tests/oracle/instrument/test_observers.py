"""Statistics instead of tensors, through every kind of frame: those of the very tensors that would have been kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.instrument.statistics.core_statistics import core_numbers, core_statistics
from tests.oracle.engine import layer, observe
from tests.support.data import evenly

WEIGHTS = evenly(-1.0, 1.0, 3, 3)
INPUTS = evenly(-1.0, 2.0, 4, 3)


def dense(weight: Any, x: Any) -> Any:
    return jnp.tanh(x @ weight)


def loss(weight: Any, batch: Any) -> Any:
    """One layer in every kind of frame, of every kind of value."""
    x, flag, iterations = batch
    low, wide = x.astype(jnp.bfloat16), x.astype(jnp.complex64)
    made = layer("dtypes", lambda: (x > 0, jnp.argmax(x), x[:0], jax.random.key(0), low * 2, wide * 2))
    step = lambda carry, _: (jax.checkpoint(partial(layer, "step", dense))(weight, carry), None)  # noqa: E731
    x, _ = jax.lax.scan(step, layer("dense", dense, weight, x), None, length=2)
    x = jax.lax.cond(flag, partial(layer, "yes", jnp.sin), partial(layer, "no", jnp.cos), x)
    looped = jax.lax.fori_loop(0, iterations, lambda _, y: layer("loop", lambda: y * 2), jax.lax.stop_gradient(x))
    return (layer("low", lambda: x.astype(jnp.bfloat16)).astype(jnp.float32) * looped).sum(), made


def test_statistics_are_those_of_the_tensors() -> None:
    batch = (INPUTS, jnp.bool_(True), jnp.int32(2))
    tensors = observe(loss, WEIGHTS, batch).seen
    statistics = observe(loss, WEIGHTS, batch, observer=core_statistics).seen
    assert {f"dtypes.{number}" for number in range(6)} <= set(tensors)
    assert tensors.keys() == statistics.keys()
    for name, tensor in tensors.items():
        measured = statistics[name]
        for values, vector in ((tensor.activation, measured.activation), (tensor.gradient, measured.gradient)):
            assert (values is None) == (vector is None), name
            if values is not None:
                check_statistics(np.asarray(values), np.asarray(vector))


def check_statistics(values: np.ndarray, vector: np.ndarray) -> None:
    numbers = core_numbers(vector)
    wide = np.abs(values) if np.iscomplexobj(values) else values.astype(np.float64)
    assert numbers.finite == values.size
    assert numbers.zeros == (wide == 0).sum()
    if values.size:
        assert numbers.mean == pytest.approx(wide.mean(), rel=1e-5, abs=1e-6)
        # Of two programs, which the compiler may round differently.
        assert (numbers.minimum, numbers.maximum) == pytest.approx((wide.min(), wide.max()), rel=1e-6)
