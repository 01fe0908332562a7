"""Solvers with derivative rules of their own, from the command line: diffrax as it is by default, and jaxopt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.tracing.loading.loader import load_model
from tests.integration.command import gradscope
from tests.zoo import agreement

DIFFRAX = """
import diffrax, equinox as eqx, jax, jax.numpy as jnp

class Field(eqx.Module):
    linear: eqx.nn.Linear
    def __call__(self, t, y, args):
        return jnp.tanh(self.linear(y))

class Net(eqx.Module):
    field: Field
    head: eqx.nn.Linear
    def __init__(self, *, key):
        self.field, self.head = Field(eqx.nn.Linear(3, 3, key=key)), eqx.nn.Linear(3, 2, key=key)
    def __call__(self, y):
        found = diffrax.diffeqsolve(diffrax.ODETerm(self.field), diffrax.Heun(), 0.0, 0.2, 0.1, y, max_steps=4)
        return self.head(found.ys[-1])
"""


def test_diffrax_with_its_default_adjoint(folder: Path) -> None:
    pytest.importorskip("equinox", reason="equinox is not installed")
    pytest.importorskip("diffrax", reason="diffrax is not installed")
    agreement.source(folder, DIFFRAX)
    line = ("dump", "net.py:Net", "--input", "float32[4,3]", "--loss", "mse", "-o", "net.npz")
    done = gradscope(*line, folder=folder)
    assert done.status == 0, done.errors
    # The infinities with which the solver fills what it has not computed are no findings.
    assert "nonfinite" not in done.output
    seen = gs.load("net.npz")
    (inside,) = (
        key for key in seen if key.startswith("activation/") and re.fullmatch(r".*field\[\d+\]\[\d+\]/linear", key)
    )
    why = {line.name: (line.reason, line.detail) for line in seen.ledger.missing if line.family == "activation_grad"}
    reason, detail = why[inside.removeprefix("activation/")]
    assert reason == "opaque"
    assert detail.endswith(", whose own rule makes the gradients")

    weight, bias = (jnp.asarray(seen[f"param/field/linear/{name}"]) for name in ("weight", "bias"))

    stages: list[Any] = []

    def loss(weight: Any, y: Any) -> Any:
        def field(y: Any) -> Any:
            stages.append(y @ weight.T + bias)
            return jnp.tanh(stages[-1])

        for _ in range(2):
            euler = field(y)
            y = y + 0.05 * (euler + field(y + 0.1 * euler))
        made = y @ seen["param/head/weight"].T + seen["param/head/bias"]
        return jnp.square(made - seen["input/labels"]).mean()

    loss(weight, jnp.asarray(seen["input/y"]))
    np.testing.assert_allclose(seen[inside], stages[-1], rtol=1e-5, atol=1e-6)
    of_weight, of_y = jax.grad(loss, (0, 1))(weight, jnp.asarray(seen["input/y"]))
    np.testing.assert_allclose(seen["param_grad/field/linear/weight"], of_weight, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(seen["input_grad/y"], of_y, rtol=1e-4, atol=1e-7)


RIDGE = """
import jax, jax.numpy as jnp, jaxopt

def init(key):
    return {"w": jax.random.normal(key, (3, 3)), "penalty": jnp.float32(0.3)}

def batch(key, size):
    return {"x": jax.random.normal(key, (size, 3)), "y": jnp.arange(float(size))}

def objective(p, penalty, x, y):
    return jnp.square(x @ p - y).mean() + penalty * jnp.square(p).sum()

def loss(v, b):
    x, y = b["x"] @ v["w"], b["y"]
    SOLVE
    with jax.named_scope("head"):
        return jnp.square(x @ p - y).mean()
"""

#: The lines of a solver that is given every array, and of one that reads them from around it.
GIVEN = """p = jaxopt.GradientDescent(objective, maxiter=3, tol=0.0, stepsize=0.1, acceleration=False).run(
        jnp.zeros(3), v["penalty"], x, y).params"""
CLOSED_OVER = """p = jaxopt.GradientDescent(lambda p, penalty: objective(p, penalty, x, y), maxiter=3).run(
        jnp.zeros(3), v["penalty"]).params"""


def test_jaxopt_with_implicit_differentiation(folder: Path) -> None:
    pytest.importorskip("jaxopt", reason="jaxopt is not installed")
    model = load_model(agreement.source(folder, RIDGE.replace("SOLVE", GIVEN)))
    variables, batch = model.init(jax.random.key(0)), model.batch(jax.random.key(1), 4)
    seen = gs.capture(model.loss, variables, batch)
    agreement.assert_gradients(seen, jax.grad(model.loss)(variables, batch))
    assert {"activation/head", "activation_grad/head"} <= set(seen)


def test_a_jaxopt_solver_that_reads_arrays_from_around_it_is_refused_by_name(folder: Path) -> None:
    pytest.importorskip("jaxopt", reason="jaxopt is not installed")
    agreement.source(folder, RIDGE.replace("SOLVE", CLOSED_OVER))
    done = gradscope("dump", "net.py", "--batch-size", "4", folder=folder)
    assert done.status == 4
    assert "the derivative rule of jaxopt (implicit_diff.py:" in done.lines[0]
    assert done.lines[1].startswith("hint: pass every array that the function uses as an argument")
