"""A norm of a mean and a variance that a loss is given is found; norms of the batch and other roots are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.lookup.functions.given_statistics import given_statistics
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

PARAMS = {"w": filled(1.0, 8, 8), "scale": filled(1.0, 8), "bias": filled(0.0, 8)}
BATCH = {"x": filled(1.0, 4, 8), "y": filled(1.0, 4, 8), "mean": filled(0.0, 8), "var": filled(1.0, 8)}


def found(norm: Callable[[Any, Any, Any], Any]) -> int:
    """Returns how many norms are found in a loss of what a layer makes, normalised."""

    def loss(p: Any, b: Any) -> Any:
        return jnp.square(norm(b["x"] @ p["w"], p, b)).mean()

    with jax.numpy_rank_promotion("allow"):
        return len(given_statistics(trace_loss(loss, PARAMS, BATCH)))


def moments(h: Any) -> tuple[Any, Any]:
    return h.mean(0), h.var(0)


GIVEN = (
    lambda h, p, b: (h - b["mean"]) * (jax.lax.rsqrt(b["var"] + 1e-5) * p["scale"]) + p["bias"],
    lambda h, p, b: p["scale"] * ((h - b["mean"]) / jnp.sqrt(b["var"] + 1e-5)) + p["bias"],
    lambda h, p, b: jax.vmap(lambda e: (e - b["mean"]) / jnp.sqrt(b["var"][None] + 1e-5)[0])(h) @ p["w"],
    lambda h, p, b: (h[:1] - b["mean"]) * jax.lax.rsqrt(b["var"] + 1e-5) + p["bias"],  # of one example
    jax.jit(lambda h, p, b: (h - b["mean"][None]) * jax.lax.rsqrt(jnp.maximum(b["var"], 1e-5)) * p["scale"]),
)
OTHER = (
    lambda h, p, b: (h - moments(h)[0]) * jax.lax.rsqrt(moments(h)[1] + 1e-5) * p["scale"] + p["bias"],
    lambda h, p, b: ((b["x"] - b["mean"]) * jax.lax.rsqrt(b["var"] + 1e-5)) @ p["w"] + h,
    lambda h, p, b: h * jax.lax.rsqrt(b["var"] + 1e-5),
    lambda h, p, b: (h - b["mean"]) * p["scale"] * jax.lax.rsqrt(h.var(0) + 1e-5),
    lambda h, p, b: (h - (0.9 * b["mean"] + 0.1 * h.mean(0))) * jax.lax.rsqrt(0.9 * b["var"] + 0.1 * h.var(0)),
    lambda h, p, b: (1 - h) * jax.lax.rsqrt(b["var"] + 1e-5),
    lambda h, p, b: (h - b["mean"]) / b["var"],
    lambda h, p, b: (h - b["y"]) / jnp.sqrt(b["var"]),  # a residual by the error of what was measured
    # predictions in the units of the targets, and a penalty
    lambda h, p, b: (h - b["mean"]) * jax.lax.rsqrt(b["var"] + 1e-5) - b["y"] + jnp.square(p["w"]).sum(),
    lambda h, p, b: h.mean() + ((p["w"] - b["mean"]) / jnp.sqrt(b["var"])).sum(),  # the distance from a prior
)


@pytest.mark.parametrize("norm", GIVEN)
def test_a_norm_of_given_statistics_is_found(norm: Callable[[Any, Any, Any], Any]) -> None:
    assert found(norm) == 1


@pytest.mark.parametrize("norm", OTHER)
def test_other_norms_and_roots_are_not(norm: Callable[[Any, Any, Any], Any]) -> None:
    assert found(norm) == 0
