"""`check` of a solver inside a primitive of another library: a small error may be the solver's, a large one is not."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.proving import Proof, prove
from gradscope.tracing.loading.model import Model

A = jnp.array([2.0, 3.5, 0.7])


def root_of(a: Any, tolerance: float) -> Any:
    """Returns a square root by an iteration that converges linearly, and stops early."""

    def goes_on(state: Any) -> Any:
        _, moved, times = state
        return (moved > tolerance) & (times < 300)

    def step(state: Any) -> Any:
        root, _, times = state
        new = root - 0.3 * (root * root - a)
        return new, jnp.abs(new - root).max(), times + 1

    return lax.while_loop(goes_on, step, (jnp.ones_like(a), jnp.inf * a.sum(), 0))[0]


def primitive(*, tolerance: float, slope: float) -> Primitive:
    """Returns a primitive that solves, as lineax's does, with a multiple of the derivative of the exact solution."""
    made = Primitive("solve")

    def impl(state: Any, a: Any) -> Any:
        return root_of(state, tolerance) + 0 * a

    made.def_impl(impl)
    made.def_abstract_eval(lambda state, _: state)
    mlir.register_lowering(made, mlir.lower_fun(impl, multiple_results=False))

    def jvp(primals: Any, tangents: Any) -> Any:
        root = made.bind(*primals)
        return root, slope * tangents[1] / (2 * root)

    ad.primitive_jvps[made] = jvp
    return made


def proof(solve: Primitive) -> Proof:
    """Returns the proof of a loss whose solver reads a stopped copy of what its rule differentiates."""

    def loss(a: Any, x: Any) -> Any:
        return (solve.bind(lax.stop_gradient(a), a) * x).sum()

    x = jnp.array([1.0, -2.0, 3.0])
    return prove(Model.of_values("model", loss, A, x), Arguments.of(A, x), Timings())


def test_an_error_of_the_solvers_tolerance_is_not_held_against_the_rule() -> None:
    found = proof(primitive(tolerance=1e-6, slope=1.0))
    (of_a,) = (row for row in found.gradients if row.what.startswith("param_grad"))
    assert of_a.status == "not checked"
    assert str(of_a.why).startswith("the error may be an iterative solver's")
    assert found.verdict != "wrong"


@pytest.mark.slow
def test_an_exact_solver_leaves_no_error() -> None:
    assert {row.status for row in proof(primitive(tolerance=1e-12, slope=1.0)).gradients} == {"correct"}


@pytest.mark.parametrize("error", [RuntimeError, TypeError, AttributeError])
def test_a_primitive_that_runs_on_numbers_alone_is_checked_by_what_jax_compiles(error: type[Exception]) -> None:
    solve = primitive(tolerance=1e-12, slope=1.0)

    def on_numbers(state: Any, a: Any) -> Any:
        if isinstance(a, Tracer):
            raise error("this library takes numbers")
        return root_of(state, 1e-12)

    solve.def_impl(on_numbers)
    assert {row.status for row in proof(solve).gradients} == {"correct"}


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-6, 1e-12])
def test_a_wrong_rule_of_a_hidden_solver_is_wrong(tolerance: float) -> None:
    found = proof(primitive(tolerance=tolerance, slope=1.1))
    assert found.verdict == "wrong"
