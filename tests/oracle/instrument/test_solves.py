"""Linear solves with implicit derivatives: the solver's own operations are observed, and gradients go around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import gradscope as gs
from gradscope.errors import UsageError
from gradscope.tracing.dataflow.reachability import Reach
from tests.oracle.engine import Probe, assert_close, bits, check, check_gradients, layer, observe, unprobed
from tests.oracle.terms import assert_sums
from tests.support.data import evenly

WEIGHTS = evenly(-0.5, 0.5, 3, 3)
INPUTS = evenly(-1.0, 2.0, 4, 3)

Solver = Callable[..., Any]


def matrix_of(weight: Any) -> Any:
    return weight + 4.0 * jnp.eye(3)


def richardson(matvec: Callable[[Any], Any], right: Any, probe: Probe = unprobed) -> Any:
    """Two sweeps: too few for a good solution, so that to differentiate through them would give other gradients."""
    guess = layer("precondition", lambda right: right / 4.0, right, probe=probe, at="solved/precondition")
    for name in ("first", "second"):
        guess = layer(name, lambda x: x + (right - matvec(x)) / 4.0, guess, probe=probe, at=f"solved/{name}")
    return guess


def solved(solver: Solver, weight: Any, right: Any) -> Any:
    matrix = matrix_of(weight)
    return jax.lax.custom_linear_solve(lambda x: matrix @ x, right, solver, richardson)


def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
    right = layer("right", lambda x: jnp.tanh(x.sum(axis=0)), x, probe=probe)
    solution = layer("solved", partial(solved, richardson), weight, right, probe=probe)
    return layer("loss", lambda x: (x**2).sum(), solution, probe=probe)


def twin(weight: Any, x: Any, probe: Probe) -> Any:
    """The loss with its solver run a second time, where JAX differentiates it and nothing depends on it."""
    right = probe("right", jnp.tanh(x.sum(axis=0)))
    richardson(lambda x: matrix_of(weight) @ x, right, probe)
    solution = probe("solved", solved(richardson, weight, right))
    return probe("loss", (solution**2).sum())


@pytest.mark.slow
def test_the_operations_of_a_solver_are_observed_and_change_no_bit() -> None:
    observation = check(loss, WEIGHTS, INPUTS, twin=twin)
    assert {"solved/precondition", "solved/first", "solved/second"} <= observation.seen.keys()


@pytest.mark.slow
def test_gradients_go_around_the_solver_and_not_through_it() -> None:
    def unrolled(weight: Any) -> Any:
        return (richardson(lambda x: matrix_of(weight) @ x, jnp.tanh(INPUTS.sum(axis=0))) ** 2).sum()

    around = jax.grad(loss)(WEIGHTS, INPUTS)
    assert float(jnp.abs(around - jax.grad(unrolled)(WEIGHTS)).max()) > 1e-3
    dump = gs.capture(loss, WEIGHTS, INPUTS, ops=True)
    assert_close(dump["param_grad/value"], around)
    for name in ("first", "second", "precondition"):
        assert f"activation_grad/solved/{name}" not in dump
        (line,) = (line for line in dump.manifest.ledger.missing if line.name == f"solved/{name}")
        assert (line.family, line.reason) == ("activation_grad", "disconnected")
        assert "custom_linear_solve at test_solves.py" in line.detail
        assert "whose derivative is another solve" in line.detail


@pytest.mark.slow
def test_terms_of_a_solve_sum_to_gradients() -> None:
    assert_sums(gs.capture(loss, WEIGHTS, INPUTS, ops="inputs", terms=True))


@pytest.mark.slow
def test_a_guess_gets_no_gradient_and_the_linear_map_does() -> None:
    def guessed(weight: Any, x: Any) -> Any:
        matrix, right = matrix_of(weight), x.sum(axis=0)
        guess = layer("guess", jnp.sin, right)
        with jax.named_scope("cg"):
            solution, _ = jax.scipy.sparse.linalg.cg(lambda x: matrix @ (matrix.T @ x), right, x0=guess, maxiter=4)
        return (solution**2).sum()

    observation = check_gradients(guessed, WEIGHTS, INPUTS)
    reach = {name.template: site.reach for site in observation.trace.sites for name in site.names}
    assert reach["guess"] is Reach.NOTHING
    assert reach["cg"] is Reach.GRADIENT
    dump = gs.capture(guessed, WEIGHTS, INPUTS, ops=True)
    inside = [key for key in dump if key.startswith("activation/cg[")]
    assert inside  # the last iteration of the solver's loop
    reasons = {line.name: line.reason for line in dump.manifest.ledger.missing}
    found = {reasons.get(key.removeprefix("activation/")) for key in inside}
    assert found <= {"disconnected", "non-differentiable", None}  # None: another name of a value with a line of its own


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [True, False])
def test_what_a_solver_returns_beside_the_solution_is_returned(symmetric: bool) -> None:
    def with_aux(weight: Any, x: Any) -> Any:
        matrix = jnp.diag(4.0 + weight[0])

        def solver(_matvec: Any, right: Any) -> Any:
            solution = layer("inverse", lambda right: right / (4.0 + weight[0]), right)
            return solution, {"norm": jnp.sqrt((right**2).sum()), "steps": jnp.int32(1)}

        solution, aux = jax.lax.custom_linear_solve(
            lambda x: matrix @ x, x.sum(axis=0), solver, solver, symmetric=symmetric, has_aux=True
        )
        return (solution**2).sum(), aux

    check_gradients(with_aux, WEIGHTS, INPUTS)
    dump, (_, aux) = gs.capture(with_aux, WEIGHTS, INPUTS), with_aux(WEIGHTS, INPUTS)
    assert_close(dump["aux/norm"], aux["norm"])
    assert dump["aux/steps"] == 1


@pytest.mark.slow
def test_a_solve_in_every_construct() -> None:
    def nested(weight: Any, x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            made = jax.checkpoint(partial(solved, richardson))(weight, carry + row)
            return jax.lax.cond(made.sum() > 0, lambda x: x, partial(solved, richardson, weight), made), None

        with jax.named_scope("loop"):
            total, _ = jax.lax.scan(step, jnp.zeros(3), x)
        return (total**2).sum() + jax.vmap(partial(solved, richardson, weight))(x).sum()

    check_gradients(nested, WEIGHTS, INPUTS)


@pytest.mark.slow
def test_gradients_of_each_example_of_a_solve() -> None:
    def batched(weight: Any, x: Any) -> Any:
        return (solved(richardson, weight, jnp.tanh(x.mean(axis=0))) ** 2).sum()

    found = gs.capture(batched, WEIGHTS, INPUTS, per_example=True)["example_grad/value"]
    for row, gradient in zip(INPUTS, found, strict=True):
        assert_close(gradient, jax.grad(batched)(WEIGHTS, row[None]))


@pytest.mark.slow
def test_a_value_and_gradient_that_is_differentiated_again_is_what_jax_computes() -> None:
    def of(differentiate: Any) -> Any:
        return jax.jit(jax.grad(lambda weight: (differentiate(weight) ** 2).sum()))(WEIGHTS)

    observed = gs.value_and_grad(lambda weight: loss(weight, INPUTS), observe="tensors")
    plain = jax.grad(lambda weight: loss(weight, INPUTS))
    assert_close(of(lambda weight: observed(weight)[0][1]), of(plain))


@pytest.mark.parametrize("question", [{"stop_gradients": ["solved/first"]}, {"feed": {"solved/first": np.zeros(3)}}])
def test_nothing_can_be_requested_of_values_inside_a_solver(question: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="inside a custom rule, a linear solve or a while loop"):
        gs.capture(loss, WEIGHTS, INPUTS, **question)


def test_an_equation_in_a_solver_has_the_value_that_it_has_alone() -> None:
    """Bit for bit, operation by operation: each observed value is what its primitive makes of the observed operands."""
    with jax.disable_jit():
        right = jnp.tanh(INPUTS.sum(axis=0))
        first = right / 4.0 + (right - matrix_of(WEIGHTS) @ (right / 4.0)) / 4.0
    seen = observe(loss, WEIGHTS, INPUTS, jit=False).seen
    assert bits(seen["solved/first"].activation) == bits(np.asarray(first))


@jax.custom_vjp
def with_own_rule(x: Any) -> Any:
    return matrix_of(WEIGHTS + WEIGHTS.T) @ x


with_own_rule.defvjp(lambda x: (with_own_rule(x), None), lambda _, cotangent: (with_own_rule(cotangent),))


SYMMETRIC = np.asarray(WEIGHTS) + np.asarray(WEIGHTS).T + 4.0 * np.eye(3, dtype=np.float32)


def on_the_host(x: Any) -> Any:
    return jax.pure_callback(lambda x: SYMMETRIC @ np.asarray(x), x, x, vmap_method="sequential")


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("matvec", [with_own_rule, on_the_host])
def test_a_symmetric_map_that_jax_cannot_transpose_is_solved_all_the_same(matvec: Any, batched: bool) -> None:
    def solve(right: Any) -> Any:
        return jax.lax.custom_linear_solve(matvec, right, richardson, symmetric=True)

    def symmetric(scale: Any, x: Any) -> Any:
        return (jax.vmap(solve)(x * scale) if batched else solve(x[0] * scale)).sum()

    expected = jax.value_and_grad(symmetric)(2.0, INPUTS)
    found, seen = gs.value_and_grad(symmetric)(2.0, INPUTS)
    assert bits(found) == bits(expected)
    assert len(seen) > 0


def test_a_gradient_with_respect_to_a_value_inside_a_solver_is_refused_and_not_none() -> None:
    def named(weight: Any, right: Any) -> Any:
        def solver(matvec: Any, right: Any) -> Any:
            return checkpoint_name(richardson(matvec, right), "inner")

        return {"z": solved(solver, weight, right).sum()}

    for question in ({"ys": "z", "xs": "inner"}, {"ys": "inner", "xs": "weight"}):
        with pytest.raises(UsageError, match="inner is inside a custom rule or a linear solve"):
            gs.gradients(named, [WEIGHTS, INPUTS[0]], **question)
