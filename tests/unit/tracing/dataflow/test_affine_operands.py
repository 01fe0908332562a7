"""A dual variable is found by the program: the loss is affine in it, but for a function of it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.dataflow.affine_operands import affine_operands
from gradscope.tracing.tracer import trace_loss
from tests.support.data import drawn

VARIABLES = {"dual": drawn(0, 3), "w": drawn(1, 4, 3)}
X = drawn(2, 8, 4)


def affine(loss: Callable[[Any, Any], Any]) -> set[str]:
    trace = trace_loss(loss, VARIABLES, X)
    found = affine_operands(trace.root, trace.reachability, range(len(trace.arguments)))
    return {trace.arguments[at].name for at in found}


def task(v: Any, x: Any) -> Any:
    return (jnp.tanh(x @ v["w"]) ** 2).mean()


def violation(v: Any, x: Any) -> Any:
    return jnp.maximum((x @ v["w"]).mean(axis=0), 0.0) - 0.1


def squared(v: Any, x: Any) -> Any:
    return ((v["dual"] * violation(v, x)) ** 2).sum()


@pytest.mark.parametrize(
    "loss",
    [
        lambda v, x: task(v, x) + (v["dual"] * violation(v, x)).sum(),
        lambda v, x: task(v, x) - jnp.dot(violation(v, x), v["dual"]),
        lambda v, x: task(v, x) + (jax.nn.softplus(v["dual"]) * violation(v, x)).sum(),
        lambda v, x: task(v, x) + jax.jit(lambda d, g: (jnp.clip(d, 0.0, 5.0) * g).sum())(v["dual"], violation(v, x)),
        lambda v, x: task(v, x) + jnp.where(violation(v, x) > 0, v["dual"], 0.0).sum(),
        lambda v, x: task(v, x) + jax.lax.scan(lambda c, r: (c + r[0] * r[1], None), 0.0, (v["dual"], x[0, :3]))[0],
    ],
    ids=[
        "a multiplier",
        "a product of vectors",
        "kept positive",
        "clipped in a jit",
        "of active constraints",
        "a scan",
    ],
)
def test_a_loss_is_affine_in_a_dual_variable(loss: Callable[[Any, Any], Any]) -> None:
    assert affine(loss) == {"dual"}


@pytest.mark.parametrize(
    "loss",
    [
        lambda v, x: (jnp.tanh(x @ v["w"]) + v["dual"][None]).std(),
        lambda v, x: jax.nn.logsumexp(v["dual"][0] * (x @ v["w"])).mean(),
        lambda v, x: task(v, x) + (v["dual"] * violation(v, x) * v["dual"]).sum(),
        lambda v, x: task(v, x) + (violation(v, x) / v["dual"] * v["dual"][0]).sum(),
        lambda v, x: jax.nn.relu(x @ v["w"] + v["dual"][None]).mean(),
        lambda v, x: jax.lax.cond(v["w"][0, 0] > 0, task, squared, v, x),
    ],
    ids=["a bias", "a temperature", "squared", "a divisor", "before a rectifier", "a branch squares it"],
)  # fmt: skip
def test_a_parameter_that_changes_its_own_gradient_is_none(loss: Callable[[Any, Any], Any]) -> None:
    assert affine(loss) == set()
