"""`check` of rules that differentiate a solution: as exact as the solver, and wrong only beyond that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import hijax
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import cg

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.claims import Outcome
from gradscope.proof.float64 import coarsest_epsilon, wide_types, widened
from gradscope.proof.leaf_claims import LossOfLeaves, leaf_outcomes
from gradscope.proof.proving import Proof, ProofOptions, prove
from gradscope.proof.solvers.solver_tolerance import tightened, tightenings
from gradscope.proof.solvers.unrolled_steps import unrolled_steps
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import trace_loss
from tests.support.sampled import sampled

W = 0.2 * jax.random.normal(jax.random.key(0), (4, 4))
X = jax.random.normal(jax.random.key(1), (2, 4))


def proof(loss: Callable[[Any, Any], Any]) -> Proof:
    return prove(Model.of_values("model", loss, W, X), Arguments.of(W, X), Timings())


def gradient(loss: Callable[[Any, Any], Any], *, tolerance: float = 0.0) -> Outcome:
    """The outcome of the claim about the gradient with respect to `W` alone, in float64."""
    with wide_types(), np.errstate(all="ignore"):
        leaves = [widened(W), widened(X)]
        trace = trace_loss(loss, *leaves)
        frames = list(trace.root.walk())
        of_w = LossOfLeaves(
            lambda arguments: loss(*arguments),
            None,
            leaves,
            [0],
            epsilon=coarsest_epsilon(frames, trace.liveness),
            tightenings=tightenings(frames),
        )
        ((_, found),) = leaf_outcomes(of_w, 0, tolerance=tolerance)
    return found


def until_small(step: Callable[[Any], Any], start: Any) -> Any:
    """A fixed point, to a tolerance of the last step."""
    going = lambda state: (state[0] < 50) & (jnp.linalg.norm(state[1] - state[2]) > 1e-5)  # noqa: E731
    return lax.while_loop(going, lambda s: (s[0] + 1, step(s[1]), s[1]), (0, step(start), start))[1]


def repeated(step: Callable[[Any], Any], start: Any) -> Any:
    """A fixed point, by eight steps whatever happens."""
    return lax.fori_loop(0, 8, lambda _, z: step(z), start)


def until_tired(step: Callable[[Any], Any], start: Any) -> Any:
    """A fixed point, to a tolerance that the largest number of steps leaves unreached."""
    going = lambda state: (state[0] < 5) & (jnp.linalg.norm(state[1] - state[2]) > 1e-9)  # noqa: E731
    return lax.while_loop(going, lambda s: (s[0] + 1, step(s[1]), s[1]), (0, step(start), start))[1]


def numbered(step: Callable[[Any], Any], start: Any) -> Any:
    """A fixed point, by eight numbered steps, each of which hands out its residual."""
    move = lambda z, _: (step(z), jnp.linalg.norm(step(z) - z))  # noqa: E731
    return lax.scan(move, start, jnp.arange(8))[0]


def unrolled(step: Callable[[Any], Any], start: Any) -> Any:
    """A fixed point, by eight steps that Python repeats."""
    for _ in range(8):
        start = step(start)
    return start


def begun(step: Callable[[Any], Any], start: Any) -> Any:
    """A fixed point, by so few steps that four times as many are not near it either."""
    return lax.fori_loop(0, 2, lambda _, z: 0.7 * z + 0.3 * step(z), step(start))


def wandering(step: Callable[[Any], Any], start: Any) -> Any:
    """A fixed point, to a tolerance of the last step, by steps that wander about near the solution."""

    def move(z: Any) -> Any:
        new = step(z)
        return jnp.where(jnp.linalg.norm(new - z) * 1e7 > 1.0, new, new + jnp.sin(1e9 * z) / 1e7)

    going = lambda state: (state[0] < 500) & (jnp.linalg.norm(state[1] - state[2]) > 1e-6)  # noqa: E731
    return lax.while_loop(going, lambda s: (s[0] + 1, move(s[1]), s[1]), (0, step(start), start))[1]


def cell(w: Any, x: Any, z: Any) -> Any:
    return jnp.tanh(z @ w + x)


def equilibrium(solve: Callable[..., Any], *, factor: float = 1.0, one_step: bool = False) -> Callable[[Any, Any], Any]:
    """The mean square of a deep equilibrium, with a rule that may be wrong."""

    @jax.custom_vjp
    def fixed(w: Any, x: Any) -> Any:
        return solve(lambda z: cell(w, x, z), jnp.zeros_like(x))

    def forward(w: Any, x: Any) -> Any:
        z = fixed(w, x)
        return z, (w, x, z)

    def backward(kept: Any, cotangent: Any) -> Any:
        w, x, z = kept
        pull = jax.vjp(lambda z: cell(w, x, z), z)[1]
        sent = cotangent if one_step else solve(lambda u: cotangent + pull(u)[0], jnp.zeros_like(cotangent))
        of_w, of_x = jax.vjp(lambda w, x: cell(w, x, z), w, x)[1](sent)
        return factor * of_w, of_x

    fixed.defvjp(forward, backward)
    return lambda w, x: jnp.square(fixed(w, x)).mean()


class FixedPoint(getattr(hijax, "VJPHiPrimitive", None) or hijax.HiPrim):  # `HiPrim` from JAX 0.12
    """The fixed point of a cell, as a primitive that is an object, whose rule may be wrong by a factor."""

    def __init__(self, w: Any, x: Any, factor: float) -> None:
        self.in_avals, self.out_aval, self.params = (jax.typeof(w), jax.typeof(x)), jax.typeof(x), {"factor": factor}
        super().__init__()

    def expand(self, w: Any, x: Any) -> Any:
        return repeated(lambda z: cell(w, x, z), jnp.zeros_like(x))

    def vjp_fwd(self, nzs_in: Any, w: Any, x: Any) -> Any:
        found = self(w, x)
        return found, (w, x, found)

    def vjp_bwd_retval(self, kept: Any, cotangent: Any) -> Any:
        w, x, found = kept
        pull = jax.vjp(lambda z: cell(w, x, z), found)[1]
        sent = repeated(lambda u: cotangent + pull(u)[0], jnp.zeros_like(cotangent))
        of_w, of_x = jax.vjp(lambda w, x: cell(w, x, found), w, x)[1](sent)
        return self.factor * of_w, of_x


def as_object(factor: float) -> Callable[[Any, Any], Any]:
    """Two fixed points of unlike shapes by primitives that are equal."""
    fixed = lambda w, x: FixedPoint(w, x, factor)(w, x)  # noqa: E731
    return lambda w, x: jnp.square(fixed(w, x)).mean() + fixed(w, x[:1]).mean()


def conjugate(w: Any, x: Any) -> Any:
    matrix = jnp.eye(4) + w @ w.T
    return jnp.square(cg(lambda v: matrix @ v, x[0], tol=1e-3)[0]).sum()


def integrated(w: Any, x: Any) -> Any:
    path = odeint(lambda y, _, w: jnp.sin(y * w), x[0, 0], jnp.array([0.0, 1.0]), w[0, 0], rtol=1e-4, atol=1e-4)
    return jnp.square(path[-1])


def solved_loosely(w: Any, x: Any) -> Any:
    """Conjugate gradients whose result is far from the solution: the differences of both are, too."""
    matrix = jnp.eye(4) + 16.0 * w @ w.T
    return (cg(lambda v: matrix @ v, x[0], tol=1e-1)[0] * x[1]).sum()


def halved(target: Any) -> Any:
    """The root of z^3 + z = target by bisection, whose result jumps."""

    def halve(ends: Any) -> Any:
        middle = ends.mean(0)
        above = middle**3 + middle > target
        return jnp.stack([jnp.where(above, ends[0], middle), jnp.where(above, middle, ends[1])])

    start = jnp.stack([jnp.full_like(target, -5.0), jnp.full_like(target, 5.0)])
    return lax.while_loop(lambda ends: jnp.max(ends[1] - ends[0]) > 1e-4, halve, start).mean(0)


def bisected(factor: float) -> Callable[[Any, Any], Any]:
    rule = jax.custom_vjp(halved)
    rule.defvjp(
        lambda target: (halved(target),) * 2,
        lambda root, cotangent: (factor * cotangent / (3 * root**2 + 1),),
    )
    return lambda w, x: jnp.square(rule(x @ w)).sum()


def newton(w: Any, x: Any) -> Any:
    def solve(residual: Any, start: Any) -> Any:
        step = lambda z: z - 0.6 * jnp.linalg.solve(jax.jacobian(residual)(z), residual(z))  # noqa: E731
        return lax.while_loop(lambda z: jnp.linalg.norm(residual(z)) > 1e-4, step, start)

    root = lax.custom_root(
        lambda z: z**3 + z - x[0] @ w, jnp.zeros(4), solve, lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y)
    )
    return jnp.square(root + 1.0).sum()


def batched(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The mean of the losses of the examples, whose solvers `vmap` makes one solver with a condition for each."""
    return lambda w, x: jax.vmap(lambda example: loss(w, example[None]))(x).mean()


RIGHT = {
    "a fixed point by eight steps": equilibrium(repeated),
    "a fixed point by numbered steps": equilibrium(numbered),
    "a fixed point as a primitive that is an object": as_object(1.0),
    "a fixed point by steps that Python repeats": equilibrium(unrolled),
    "a fixed point by steps that Python repeats, of each example": batched(equilibrium(unrolled)),
    "a fixed point that its largest number of steps ends": equilibrium(until_tired),
    "conjugate gradients": conjugate,
    "conjugate gradients to a large tolerance": solved_loosely,
    "a bisection": bisected(1.0),
    "an adaptive integrator": integrated,
    "a damped root search of each example": batched(newton),
}
WRONG = {
    "a factor at eight steps": equilibrium(repeated, factor=1.01),
    "a factor of a primitive that is an object": as_object(1.01),
    "a factor at steps that Python repeats": equilibrium(unrolled, factor=1.01),
    "one step in the place of steps that Python repeats": equilibrium(unrolled, one_step=True),
    "a factor at the largest number of steps": equilibrium(until_tired, factor=1.01),
    "a factor of a bisection": bisected(1.01),
    "one step in the place of a solve": equilibrium(until_small, one_step=True),
}


@sampled("name", [pytest.param(name, marks=pytest.mark.slow if "integrator" in name else ()) for name in RIGHT])
def test_a_gradient_is_as_exact_as_its_solver(name: str) -> None:
    found = gradient(RIGHT[name])
    assert found.status == "correct"
    # Without the solver's part, it would be wrong: the error is more than those of differences and of float64.
    assert found.error > 2e-8
    assert found.expected < 0.05


@pytest.mark.slow
@sampled("name", WRONG)
def test_what_no_solver_explains_is_wrong(name: str) -> None:
    assert gradient(WRONG[name]).status == "wrong"


@pytest.mark.parametrize(("factor", "status"), [(1.0, "correct"), (1.01, "wrong")])
def test_differences_of_a_solver_that_runs_longer_count_where_that_of_the_rule_divides_zeros(
    factor: float, status: str
) -> None:
    def halved_at_most(target: Any) -> Any:
        def halve(state: Any) -> Any:
            low, high, number = state
            middle = (low + high) / 2
            above = middle**3 + middle > target
            return jnp.where(above, low, middle), jnp.where(above, middle, high), number + 1

        start = (jnp.full_like(target, -5.0), jnp.full_like(target, 5.0), 0)
        ends = lax.while_loop(lambda state: (jnp.max(state[1] - state[0]) > 1e-5) & (state[2] < 30), halve, start)
        return (ends[0] + ends[1]) / 2

    def descended(slope: Any, right: Any) -> Any:
        def step(state: Any) -> Any:
            solution, rest, number = state
            along = rest**2 / (rest * slope * rest)
            return solution + along * rest, rest - along * slope * rest, number + 1

        going = lambda state: (jnp.max(state[1] ** 2) > 1e-10) & (state[2] < 5)  # noqa: E731
        return lax.while_loop(going, step, (jnp.zeros_like(right), right, 0))[0]

    rule = jax.custom_vjp(halved_at_most)
    rule.defvjp(
        lambda target: (halved_at_most(target),) * 2,
        lambda root, cotangent: (factor * descended(3 * root**2 + 1, cotangent),),
    )
    found = gradient(lambda w, x: jnp.square(rule(x @ w)).sum() + (x @ w).sum())  # the sum moves, the roots jump
    assert found.status == status


def test_a_gradient_through_a_solver_whose_results_jump_is_not_held_to_differences_of_the_loss() -> None:
    ratio = (5**0.5 - 1) / 2

    def searched(target: Any) -> Any:
        """The minimum of (z - target)^2 + z^4 by golden section, which sees half of the digits."""
        value = lambda z: (z - target) ** 2 + z**4  # noqa: E731

        def step(ends: Any, _: None) -> tuple[Any, None]:
            low, high = ends[1] - ratio * (ends[1] - ends[0]), ends[0] + ratio * (ends[1] - ends[0])
            left = value(low) < value(high)
            return (jnp.where(left, ends[0], low), jnp.where(left, high, ends[1])), None

        ends = lax.scan(step, (jnp.full_like(target, -3.0), jnp.full_like(target, 3.0)), None, length=25)[0]
        return (ends[0] + ends[1]) / 2

    rule = jax.custom_vjp(searched)
    rule.defvjp(lambda target: (searched(target),) * 2, lambda z, cotangent: (2 * cotangent / (2 + 12 * z**2),))
    found = proof(lambda w, x: jnp.square(rule(x @ w) + 1.0).sum() + (x @ w).sum())
    of_w = found.gradients[0]
    assert found.verdict != "wrong"
    assert [row.status for row in (*found.rules, of_w)] == ["not checked"] * 2
    assert str(found.rules[0].why).startswith("what its solver returns jumps")
    assert str(of_w.why).startswith("made through the rule of searched, whose results jump")


def test_a_rule_is_not_wrong_where_its_solver_is_far_from_the_solution() -> None:
    assert gradient(equilibrium(begun)).status in ("correct", "not checked")


@pytest.mark.slow
def test_a_small_error_is_not_wrong_where_a_solver_reaches_no_smaller_tolerance() -> None:
    assert gradient(equilibrium(wandering)).status in ("correct", "not checked")
    assert gradient(equilibrium(wandering, factor=1.01)).status == "wrong"
    assert gradient(equilibrium(until_small, factor=1.0002)).status == "wrong"


@pytest.mark.slow
def test_a_solver_that_a_checkpoint_runs_again_runs_longer_in_its_rule_too() -> None:
    def gradient_of(solve: Callable[..., Any]) -> Any:
        return jax.grad(jax.checkpoint(equilibrium(solve)))

    with wide_types():
        w, x = widened(W), widened(X)
        far = gradient_of(lambda step, start: lax.fori_loop(0, 60, lambda _, z: step(z), start))(w, x)
        np.testing.assert_allclose(tightened(gradient_of(until_small), "further")(w, x), far, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("times", [3, 4, 7])
def test_steps_that_python_repeats_are_found_and_may_be_taken_again(times: int) -> None:
    def function(w: Any, x: Any) -> Any:
        z, old = x, jnp.zeros_like(x)
        for _ in range(times):
            z, old = jnp.tanh(z @ w) + x, z
        return jnp.sin(z).sum() + old.sum()

    steps = unrolled_steps(trace_loss(function, W, X).root.jaxpr)
    # The first step reads where the solver starts, and not what a step has made; three of the others are enough.
    assert (0 if steps is None else steps.times) == (times - 1 if times > 3 else 0)
    far = tightened(function, "repetitions")(W, X)
    z = X
    for _ in range(times + 3 * (times - 1) if times > 3 else times):
        z, old = jnp.tanh(z @ W) + X, z
    np.testing.assert_allclose(far, jnp.sin(z).sum() + old.sum(), rtol=1e-5)


def test_layers_with_weights_of_their_own_are_no_steps() -> None:
    def function(weights: Any, x: Any) -> Any:
        for at in range(4):
            x = jnp.tanh(x @ weights[f"layer{at}"])
        return x.sum()

    weights = {f"layer{at}": W for at in range(4)}
    assert unrolled_steps(trace_loss(function, weights, X).root.jaxpr) is None


def transported() -> Callable[[Any, Any], Any]:
    """The dual objective of optimal transport by Sinkhorn's steps, which are slow."""

    def potentials(cost: Any) -> Any:
        def step(state: Any) -> Any:
            f, g, _ = state
            left = -0.1 * (jnp.log(cost.shape[0]) + jax.nn.logsumexp((g[None] - cost) / 0.1, 1))
            right = -0.1 * (jnp.log(cost.shape[1]) + jax.nn.logsumexp((left[:, None] - cost) / 0.1, 0))
            return left, right, jnp.abs(left - f).max()

        start = jnp.zeros(cost.shape[0], cost.dtype), jnp.zeros(cost.shape[1], cost.dtype)
        return lax.while_loop(lambda state: state[2] > 1e-3, step, (*start, jnp.asarray(jnp.inf, cost.dtype)))[:2]

    @jax.custom_vjp
    def transport(cost: Any) -> Any:
        f, g = potentials(cost)
        return f.mean() + g.mean()

    def forward(cost: Any) -> Any:
        f, g = potentials(cost)
        return f.mean() + g.mean(), jnp.exp((f[:, None] + g[None] - cost) / 0.1)

    transport.defvjp(forward, lambda plan, cotangent: (cotangent * plan,))
    return lambda w, batch: transport((((batch["x"] @ w)[:, None] - batch["y"][None]) ** 2).sum(-1))


@pytest.mark.slow
def test_an_error_of_a_solver_that_is_small_along_one_direction_by_chance_is_no_fault() -> None:
    of_weights, of_batch = jax.random.split(jax.random.key(0))
    w = jax.random.normal(of_weights, (3, 2))
    batch = {"x": jax.random.normal(of_batch, (6, 3)), "y": jax.random.normal(of_batch, (6, 2))}

    model = Model.of_values("model", transported(), w, batch)
    assert prove(model, Arguments.of(w, batch), Timings(), ProofOptions()).verdict == "correct"


@pytest.mark.slow
def test_a_rule_is_as_exact_as_its_solver() -> None:
    found = proof(batched(equilibrium(until_small)))
    assert {row.status for row in found.rows} == {"correct"}
    assert all((row.error or 0.0) > 2e-8 for row in (*found.rules, *found.gradients))
    assert all((row.expected or 0.0) < 0.05 for row in found.rows)


@pytest.mark.slow
@sampled("factor", [1.0, 1.01])
def test_beside_a_value_that_is_kept_constant_a_gradient_is_as_exact_as_the_solver(factor: float) -> None:
    solved = equilibrium(until_small, factor=factor)
    found = proof(lambda w, x: solved(w, x) * (1 + lax.stop_gradient(jnp.square(w).sum())))
    status = {row.what.partition(",")[0]: row.status for row in found.gradients}
    assert status["param_grad/value"] == ("correct" if factor == 1.0 else "wrong"), found.rows


@pytest.mark.slow
def test_a_wrong_rule_of_a_solver_and_what_it_makes_are_wrong() -> None:
    found = proof(equilibrium(until_small, factor=1.01))
    status = {row.what.partition(",")[0]: row.status for row in found.rows}
    assert (status["custom rule of fixed"], status["param_grad/value"]) == ("wrong", "wrong")


@pytest.mark.slow
def test_the_factor_of_a_rule_shows_through_the_error_of_its_solver() -> None:
    assert gradient(equilibrium(repeated, factor=0.9)).factor == pytest.approx(0.9, rel=1e-7)


@pytest.mark.slow
def test_a_factor_is_not_that_of_a_loop_that_computes_something_else_where_it_runs_longer() -> None:
    def power(x: Any, n: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * x), (0, jnp.ones_like(x)))[1]

    wrong = jax.custom_vjp(power)
    wrong.defvjp(lambda x, n: (power(x, n), (x, n)), lambda kept, g: (g * power(kept[0], kept[1] - 1), None))
    assert gradient(lambda w, x: jnp.square(x).sum() * wrong(1.5 + w, 3).sum()).factor == pytest.approx(1 / 3, rel=1e-7)


@pytest.mark.slow
def test_a_tolerance_may_be_given() -> None:
    wrong = equilibrium(until_small, factor=1.01)
    assert gradient(wrong, tolerance=0.02).status == "correct"
    assert gradient(wrong, tolerance=0.002).status == "wrong"


def test_a_tightened_function_is_nearer_to_the_solution() -> None:
    matrix = np.eye(4) + np.asarray(W @ W.T, np.float64)
    exact = np.linalg.solve(matrix, np.asarray(X[0], np.float64))
    function = lambda w, x: cg(lambda v: (jnp.eye(4) + w @ w.T) @ v, x[0], tol=1e-2)[0]  # noqa: E731
    usual = np.linalg.norm(function(W, X) - exact)
    assert np.linalg.norm(tightened(function, "condition")(W, X) - exact) < usual / 10


def chaotic(iterations: int) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        h = jax.nn.sigmoid(x @ w)
        return jnp.square(lax.fori_loop(0, iterations, lambda _, z: 3.9 * z * (1.0 - z), h)).mean()

    return loss


@pytest.mark.slow
def test_a_chaotic_line_is_not_smooth_here() -> None:
    found = proof(chaotic(80))
    assert {row.status for row in found.gradients} == {"not smooth here"}
    assert found.verdict == "correct"
    assert gradient(chaotic(300)).status == "not smooth here"


@pytest.mark.slow
def test_at_the_border_of_chaos_nothing_is_wrong() -> None:
    assert gradient(chaotic(40)).status in ("correct", "not smooth here")


@pytest.mark.slow
def test_a_map_that_is_not_chaotic_yet_is_checked() -> None:
    assert gradient(chaotic(5)).status == "correct"


@pytest.mark.slow
def test_a_rule_whose_solver_stops_too_early_to_tell_is_not_checked_with_the_reason() -> None:
    def loss(w: Any, x: Any) -> Any:
        matrix = jnp.diag(jnp.linspace(1.0, 30.0, 4)) + w @ w.T
        return jnp.tanh(cg(lambda v: matrix @ v, x[0], maxiter=2, tol=1e-6)[0]).sum()

    rows = [row for row in proof(loss).rows if row.what.startswith("custom rule of custom_linear_solve")]
    assert {row.status for row in rows} == {"not checked"}
    assert all((row.why or "").startswith("finite differences may err by ") for row in rows), rows
