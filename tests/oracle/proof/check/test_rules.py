"""`check` against models that are right, and against models into which one wrong rule was planted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.errors import UsageError
from gradscope.proof import leaf_claims as leaves
from gradscope.proof.proving import Proof, ProofOptions, ProofRow, prove
from gradscope.tracing.loading.model import Model
from tests.oracle.instrument.derivatives.constant_rate import rated_by
from tests.oracle.zoo import ZOO
from tests.support.data import evenly
from tests.support.sampled import sampled

W = evenly(-1.0, 1.5, 3, 4)
X = evenly(-0.9, 1.1, 2, 3)


def proof(
    loss: Callable[[Any, Any], Any], variables: Any = W, batch: Any = X, *, allowed: tuple[str, ...] = ()
) -> Proof:
    """Returns the result of `check` for a loss at these arguments."""
    model = Model.of_values("model", loss, variables, batch)
    return prove(model, Arguments.of(variables, batch), Timings(), ProofOptions(allowed=allowed))


def statuses(found: Proof) -> dict[str, str]:
    return {row.what.partition(",")[0]: row.status for row in found.rows}


def together(losses: Mapping[str, Callable[[Any, Any], Any]]) -> Callable[[Any, Any], Any]:
    """The sum of losses of one parameter each."""
    return lambda parameters, x: sum(losses[name](parameters[name], x) for name in losses)


def rule(found: Proof, function: str) -> ProofRow:
    return next(row for row in found.rows if row.what.startswith(f"custom rule of {function}"))


@jax.custom_vjp
def squared(x: Any) -> Any:
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, g: (2.0 * g * x,))


@jax.custom_vjp
def half_squared(x: Any) -> Any:
    return x * x


half_squared.defvjp(lambda x: (x * x, x), lambda x, g: (g * x,))


@jax.custom_vjp
def one_of_two(x: Any, y: Any) -> Any:
    return x * y


one_of_two.defvjp(lambda x, y: (x * y, (x, y)), lambda xy, g: (g * xy[1], g * xy[1]))


@jax.custom_jvp
def cubed(x: Any) -> Any:
    return x * x * x


@cubed.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return cubed(x), 3.0 * x * x * t


@jax.custom_jvp
def shifted(x: Any) -> Any:
    return jnp.sin(x)


@shifted.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return shifted(x), jnp.cos(x + 1e-4) * t


@jax.custom_vjp
def nearly(x: Any) -> Any:
    return jnp.tanh(x)


nearly.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * (1.0 - jnp.tanh(x) ** 2) * (1.0 + 1e-6),))


def through(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda w, x: function(x @ w).sum()


@jax.custom_vjp
def with_steps(x: Any) -> tuple[Any, Any]:
    """The square, and what no derivative is stated for."""
    return x * x, jnp.sin(x)


with_steps.defvjp(lambda x: (with_steps(x), x), lambda x, g: (2.0 * g[0] * x,))


@pytest.mark.slow
def test_an_output_that_the_loss_does_not_differentiate_does_not_count() -> None:
    found = proof(lambda w, x: with_steps(x @ w)[0].sum())
    assert rule(found, "with_steps").status == "correct"
    found = proof(lambda w, x: sum(each.sum() for each in with_steps(x @ w)))
    assert rule(found, "with_steps").status == "wrong"


@pytest.mark.slow
def test_a_right_rule_is_correct() -> None:
    found = proof(lambda w, x: (squared(x @ w) + cubed(x @ w)).sum())
    assert found.verdict == "correct"
    assert set(statuses(found).values()) == {"correct"}
    assert all(rule(found, name).error < 1e-9 for name in ("squared", "cubed"))  # type: ignore[operator]


def with_density(factor: float) -> Callable[[Any, Any], Any]:
    """A loss of a cumulative normal distribution, whose rule has the density's constant in the digits of float32."""

    def distribution(x: Any) -> Any:
        return jax.scipy.stats.norm.cdf(x)

    constant = float(np.float32(1.0 / np.sqrt(2.0 * np.pi)))
    made = jax.custom_vjp(distribution)
    made.defvjp(lambda x: (distribution(x), x), lambda x, g: (factor * constant * g * jnp.exp(-x * x / 2),))
    return lambda w, x: (made(x @ w) * 3.0).sum()


@pytest.mark.slow
def test_the_digits_of_a_constant_are_those_of_the_model() -> None:
    assert proof(with_density(1.0)).verdict == "correct"
    assert proof(with_density(1.0 + 1e-6)).verdict == "wrong"


@pytest.mark.slow
def test_a_factor_near_one_is_said_with_its_digits() -> None:
    found = proof(with_density(1.0 + 1e-6))
    assert "1.000001 times" in str(rule(found, "distribution").why)


@pytest.mark.slow
def test_a_wrong_rule_is_named_with_its_line_and_no_right_one_is() -> None:
    functions: dict[str, Any] = {each.fun.__name__: each for each in (squared, half_squared, cubed, shifted, nearly)}
    found = proof(together({name: through(each) for name, each in functions.items()}), dict.fromkeys(functions, W))
    assert found.verdict == "wrong"
    for name, function in functions.items():
        status = "correct" if name in ("squared", "cubed") else "wrong"
        assert (rule(found, name).status, statuses(found)[f"param_grad/{name}"]) == (status, status)
        assert rule(found, name).source == f"test_rules.py:{function.fun.__code__.co_firstlineno}"


@jax.custom_gradient
def decorated(x: Any, scale: Any) -> Any:
    return jnp.tanh(x) * scale, lambda g: (3.0 * g * (1.0 - jnp.tanh(x) ** 2) * scale, (g * jnp.tanh(x)).sum())


@pytest.mark.slow
@sampled("around", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_decorated_function_has_its_own_name_and_line(around: Callable[[Any], Any]) -> None:
    found = rule(proof(lambda w, x: jnp.square(around(decorated)(x @ w, w[0, 0])).sum()), "decorated")
    assert (found.status, found.why) == ("wrong", "argument 1: 3 times the derivative")
    assert (found.source or "").startswith("test_rules.py:")


@pytest.mark.slow
def test_a_rule_that_is_wrong_for_one_operand_is_wrong() -> None:
    found = proof(lambda w, x: one_of_two(x @ w, jnp.cos(x @ w)).sum())
    assert rule(found, "one_of_two").status == "wrong"


def of_modes(right: Callable[[Any], Any]) -> Any:
    """A power whose rule is right for the modes of which `right` is true, and twice the derivative for others."""

    @jax.custom_vjp
    def power(mode: Any, x: Any) -> Any:
        return jnp.where(mode == 2, x * x, x)

    def backward(kept: tuple[Any, Any], g: Any) -> Any:
        mode, x = kept
        factor = jnp.where(right(mode), 1.0, 2.0)
        return np.zeros((), jax.dtypes.float0), factor * g * jnp.where(mode == 2, 2.0 * x, 1.0)

    power.defvjp(lambda mode, x: (power(mode, x), (mode, x)), backward)
    return power


def in_calls(power: Any) -> Callable[[Any, Any], Any]:
    return lambda w, x: sum(power(jnp.int32(mode), x @ w).sum() for mode in (0, 1, 2))


def in_iterations(power: Any) -> Callable[[Any, Any], Any]:
    return lambda w, x: lax.fori_loop(0, 3, lambda mode, total: total + power(mode, x @ w).sum(), 0.0)


@pytest.mark.slow
@sampled("loss", [in_calls, in_iterations])
def test_a_rule_is_checked_at_each_value_of_a_number_that_may_choose(loss: Callable[[Any], Any]) -> None:
    assert rule(proof(loss(of_modes(lambda mode: True))), "power").status == "correct"
    wrong = rule(proof(loss(of_modes(lambda mode: mode != 2))), "power")
    assert (wrong.status, wrong.factor, wrong.why) == (
        "wrong",
        2.0,
        "where mode is 2; x: 2 times the derivative",
    )


@pytest.mark.slow
def test_the_only_value_of_a_flag_is_said_of_a_wrong_rule_and_that_of_a_measure_is_not() -> None:
    @jax.custom_vjp
    def chosen(flag: Any, slope: Any, x: Any) -> Any:
        return lax.cond(flag, jnp.sin, lambda x: slope * x, x)

    chosen.defvjp(
        lambda *operands: (chosen(*operands), operands),
        lambda kept, g: (np.zeros((), jax.dtypes.float0), jnp.zeros(()), -2.0 * g * jnp.cos(kept[2])),
    )
    wrong = rule(proof(lambda w, x: chosen(x[0, 0] < 100.0, x[0, 1], x @ w).sum()), "chosen")
    assert (wrong.status, wrong.why) == ("wrong", "where operands[0] is True; operands[2]: -2 times the derivative")


@jax.custom_vjp
def steep(x: Any) -> Any:
    return jnp.abs(x) ** 1.5


steep.defvjp(lambda x: (steep(x), x), lambda x, g: (1.5 * jnp.sqrt(jnp.abs(x)) * g,))


@jax.custom_vjp
def warped(x: Any) -> Any:
    return jnp.where(x < 0, jnp.sinh(x), x)


warped.defvjp(lambda x: (warped(x), x), lambda x, g: (jnp.where(x < 0, x, 1.0) * g,))


@pytest.mark.slow
@sampled(
    ("function", "shift", "said"),
    [
        (steep, 0.0, "x: -1 times the derivative where it is negative"),
        (warped, -0.8, "x: no multiple of the derivative where it is negative"),
        (warped, -9.0, "x: no multiple of the derivative"),
    ],
)
def test_a_rule_that_is_right_for_one_sign_is_said_to_be_wrong_for_the_other(
    function: Any, shift: float, said: str
) -> None:
    row = rule(proof(lambda w, x: function(x @ w + shift).sum()), function.__name__)
    assert (row.status, row.why, row.factor) == ("wrong", said, None)


def solving(*, transposed: bool) -> Callable[[Any, Any], Any]:
    """A loss that solves a system of a matrix that is not symmetric, and states how the transposed one is solved."""

    def loss(w: Any, x: Any) -> Any:
        matrix = 3.0 * jnp.eye(3) + w[:, :3]
        inverse = jnp.linalg.inv(matrix)
        for_gradients = inverse.T if transposed else inverse
        solved = lax.custom_linear_solve(
            lambda y: matrix @ y, jnp.sin(x[0]), lambda _, b: inverse @ b, lambda _, b: for_gradients @ b
        )
        return jnp.square(solved).sum()

    return loss


def test_a_linear_solve_whose_transpose_is_solved_wrongly_is_named() -> None:
    assert set(statuses(proof(solving(transposed=True))).values()) == {"correct"}
    wrong = [row for row in proof(solving(transposed=False)).rules if row.status == "wrong"]
    assert [(row.what.split(",")[0], row.arguments) for row in wrong] == [
        ("custom rule of custom_linear_solve", ("b",))
    ]
    with pytest.raises(UsageError, match="calls no function custom_linear_solve"):
        proof(solving(transposed=False), allowed=("custom_linear_solve",))


def test_a_linear_solve_that_has_no_transposed_one_has_no_rule() -> None:
    def loss(w: Any, x: Any) -> Any:
        scale = 3.0 + w[:, 0]
        solved = lax.custom_linear_solve(lambda y: scale * y, jnp.sin(x[0]), lambda _, b: b / lax.stop_gradient(scale))
        return (lax.stop_gradient(solved) * w[:, 0]).sum()

    found = proof(loss)
    assert {*statuses(found).values()} == {"correct"}
    assert not list(found.rules)


@pytest.mark.slow
def test_an_argument_that_gets_no_derivative_has_a_factor_of_zero() -> None:
    @jax.custom_vjp
    def scaled(x: Any, scale: Any) -> Any:
        return x * scale

    scaled.defvjp(lambda *operands: (scaled(*operands), operands), lambda kept, g: (g * kept[1], -0.0 * kept[1]))
    wrong = rule(proof(lambda w, x: scaled(x @ w, x.sum()).sum()), "scaled")
    assert (wrong.status, wrong.why) == ("wrong", "operands[1]: 0 times the derivative")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constant", "factor", "status"),
    [(lambda: 1.5, None, "correct"), (lambda: 1.5, 0.5, "wrong"),
     (lambda: jnp.sqrt(jnp.arange(3.0)).sum(), None, "correct")],
)  # fmt: skip
def test_a_constant_of_the_program_needs_no_derivative_but_no_wrong_one(
    constant: Any, factor: float | None, status: str
) -> None:
    @jax.custom_vjp
    def scaled(x: Any, scale: Any) -> Any:
        return x * scale

    def backward(kept: Any, g: Any) -> Any:
        x, scale = kept
        return g * scale, None if factor is None else factor * (g * x).sum()

    scaled.defvjp(lambda *operands: (scaled(*operands), operands), backward)
    assert rule(proof(lambda w, x: scaled(x @ w, constant()).sum()), "scaled").status == status


def attention(wrong: str) -> Any:
    """Scores of queries and keys with a rule, right but for one mistake."""

    @jax.custom_vjp
    def scores(q: Any, k: Any) -> Any:
        return jnp.sin(q @ k.T) / math.sqrt(5)

    def backward(kept: tuple[Any, Any], g: Any) -> Any:
        queries, keys = kept
        g = g * jnp.cos(queries @ keys.T) / (1.0 if wrong == "scale" else math.sqrt(5))
        found = g @ keys, g.T @ queries
        return found[::-1] if wrong == "exchanged" else found

    scores.defvjp(lambda q, k: (scores(q, k), (q, k)), backward)
    return scores


@pytest.mark.parametrize(
    ("wrong", "queries", "keys"),
    [
        ("exchanged", "the derivative with respect to k", "the derivative with respect to q (param/queries)"),
        ("scale", *["2.23607 times the derivative, the root of the length of its axis 1"] * 2),
    ],
)
def test_mistakes_of_a_rule_with_two_arguments_are_told(wrong: str, queries: str, keys: str) -> None:
    operands = {"queries": evenly(-1.0, 1.5, 4, 5), "keys": evenly(0.9, -1.2, 4, 5)}
    found = proof(lambda w, x: attention(wrong)(w["queries"], w["keys"] * x.sum()).sum(), operands)
    assert rule(found, "scores").why == f"q (param/queries): {queries}; k: {keys}"


def test_a_length_that_several_axes_have_is_said_of_all() -> None:
    @jax.custom_vjp
    def shifted(x: Any) -> Any:
        return x + 1.0

    shifted.defvjp(lambda x: (x + 1.0, None), lambda _, g: (4.0 * g,))
    found = rule(proof(lambda w, x: jnp.sin(shifted(2.0 * w)).sum() * x.sum(), evenly(-1.0, 1.5, 4, 4)), "shifted")
    assert found.why == "x: 4 times the derivative, the length of its axes 0 and 1"


@pytest.mark.slow
def test_an_exchange_is_told_of_single_numbers_too() -> None:
    """Any two numbers are multiples of each other."""

    @jax.custom_vjp
    def times(a: Any, b: Any) -> Any:
        return a * b**2

    times.defvjp(lambda a, b: (a * b**2, (a, b)), lambda kept, g: (2.0 * g * kept[0] * kept[1], g * kept[1] ** 2))
    found = rule(proof(lambda w, x: times(w[0, 0], w[0, 1]) * x.sum()), "times")
    assert found.why == "a: the derivative with respect to b; b: the derivative with respect to a"


@pytest.mark.slow
@sampled(
    ("forward", "backward", "why", "allow"),
    [
        (lambda x: jnp.round(4.0 * x), lambda g: g, "x: not zero, as the derivative is", "changed"),
        (lambda x: x, lambda g: jnp.clip(g, -0.1, 0.1), "x: no multiple of the derivative", "changed"),
        (lambda x: x, lambda g: jnp.clip(g, -1e-6, 1e-6), "x: no multiple of the derivative", "changed"),
        (lambda x: x, lambda g: -0.3 * g, "x: -0.3 times the derivative", "changed"),
        (lambda x: 2.0 * x, lambda g: g, "x: 0.5 times the derivative", None),
        (lambda x: x + 1.0, lambda g: math.sqrt(2.0) * g, "x: 1.41421 times the derivative", None),
    ],
    ids=[
        "straight through",
        "clipped",
        "clipped to almost nothing",
        "reversed",
        "a mistake",
        "a root that many lengths have",
    ],
)
def test_a_rule_that_may_be_meant_to_be_no_derivative_can_be_allowed(
    forward: Callable[[Any], Any], backward: Callable[[Any], Any], why: str, allow: str | None
) -> None:
    @jax.custom_vjp
    def changed(x: Any) -> Any:
        return forward(x)

    changed.defvjp(lambda x: (changed(x), None), lambda _, g: (backward(g),))
    wrong = rule(proof(lambda w, x: jnp.sin(changed(x @ w)).sum()), "changed")
    assert (wrong.status, wrong.why, wrong.allow) == ("wrong", why, allow)


@pytest.mark.slow
def test_a_rule_is_checked_where_it_runs() -> None:
    def loss(w: Any, x: Any) -> Any:
        y = lax.cond(x[0, 0] > 100.0, half_squared, jnp.sin, x @ w)
        return half_squared(y).sum()

    assert rule(proof(loss), "half_squared").status == "wrong"


@pytest.mark.slow
def test_of_two_rules_the_wrong_one_is_named() -> None:
    found = proof(lambda w, x: half_squared(cubed(squared(x @ w))).sum())
    assert [rule(found, name).status for name in ("squared", "cubed", "half_squared")] == [
        "correct",
        "correct",
        "wrong",
    ]


@pytest.mark.slow
@sampled(
    "around",
    [
        lambda f: lambda x: lax.scan(lambda carry, row: (carry, f(row)), 0.0, x)[1],
        lambda f: jax.checkpoint(jax.vmap(jax.jit(f))),
        lambda f: lambda x: lax.cond(x[0, 0] < 100.0, f, jnp.sin, x),
    ],
    ids=["scan", "checkpoint of vmap of jit", "branch"],
)
def test_a_wrong_rule_is_found_inside_transformations(around: Callable[[Any], Any]) -> None:
    found = proof(through(around(half_squared)))
    assert rule(found, "half_squared").status == "wrong"
    assert rule(found, "half_squared").source.startswith("test_rules.py:")  # type: ignore[union-attr]


@pytest.mark.slow
def test_among_many_leaves_the_wrong_ones_are_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "_ONE_BY_ONE", 4)
    names = [f"w{number}" for number in range(6)]

    def loss(w: Any, x: Any) -> Any:
        return sum((half_squared if name == "w4" else squared)(x @ w[name]).sum() for name in names)

    rows = proof(loss, dict.fromkeys(names, W)).rows
    assert [row.what for row in rows if row.status == "wrong" and row.what.startswith("param_grad")] == [
        "param_grad/w4"
    ]
    together = {row.what: row.status for row in rows if "gradients together" in row.what}
    assert together == {"3 gradients together, param_grad/w0 to param_grad/w2": "correct"}
    assert {row.what: row.status for row in rows}["input_grad/value"] == "wrong"  # all leaves meet in it


KINKS: dict[str, Callable[[Any, Any], Any]] = {
    "relu at zero": lambda w, x: jax.nn.relu(w * 0.0 + (w - w)).sum() + (x @ w).sum(),
    "relu of a zero parameter": lambda w, x: (jax.nn.relu(w) * jnp.arange(1.0, 13.0).reshape(3, 4)).sum(),
    "abs of a zero parameter": lambda w, x: jnp.abs(w).sum() + (x @ w).sum(),
    "a tie of maxima": lambda w, x: jnp.max(w) + (x @ w).sum(),
    "a tie of two": lambda w, x: jnp.maximum(w, w[::-1]).sum() + (x @ w).sum(),
    "a clip at its end": lambda w, x: (jnp.clip(w, 0.0, 1.0) * 2.0).sum() + (x @ w).sum(),
    "a norm at zero": lambda w, x: jnp.where(w == 0.0, 0.0, jnp.abs(w)).sum() + (x @ w).sum(),
}


def test_where_all_leaves_are_wrong_only_some_are_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "_ONE_BY_ONE", 1)
    monkeypatch.setattr(leaves, "_MOST_WRONG", 1)
    names = [f"w{number}" for number in range(6)]
    found = proof(lambda w, x: half_squared(sum(x @ w[name] for name in names)).sum(), dict.fromkeys(names, W))
    wrong = [row.what for row in found.rows if row.status == "wrong" and "custom rule" not in row.what]
    assert wrong[0] == "param_grad/w0"
    assert len(wrong) < len(names)
    assert any(what.endswith("together, param_grad/w3 to input_grad/value") for what in wrong)


@pytest.mark.slow
def test_a_kink_is_no_false_alarm() -> None:
    found = proof(together(KINKS), dict.fromkeys(KINKS, jnp.zeros((3, 4))))
    assert found.verdict == "correct"
    status = statuses(found)
    assert set(status.values()) == {"correct", "not smooth here"}
    assert status["param_grad/relu of a zero parameter"] == status["param_grad/a tie of maxima"] == "not smooth here"


@pytest.mark.slow
def test_a_kink_behind_which_a_gradient_is_stopped_is_no_false_alarm() -> None:
    signs = np.tile(np.float32([1, -1, 1, -1]), (8, 1))  # so that the derivative 0 is not between those of both sides

    def loss(b: Any, x: Any) -> Any:
        y = jnp.asarray(signs, b.dtype) * jax.nn.relu(b)
        return (y * lax.stop_gradient(1.0 + y)).sum()

    (row,) = (row for row in proof(loss, jnp.zeros((8, 4))).gradients if row.what.startswith("param_grad"))
    assert row.status == "not smooth here"
    halved = proof(lambda b, x: half_squared(1.0 + b).sum() + loss(b, x), jnp.zeros((8, 4)))
    assert halved.verdict == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [lambda w: jnp.sqrt(w * w), lambda w: jnp.where(w < 1.0, w, jnp.sqrt(w - 1.0))],
    ids=["at a kink", "of a branch that is not chosen"],
)
def test_a_gradient_that_is_no_number_is_wrong(loss: Callable[[Any], Any]) -> None:
    found = proof(lambda w, x: loss(w).sum() + (x @ w).sum(), jnp.zeros((3, 4)))
    (row,) = (row for row in found.gradients if row.what.startswith("param_grad"))
    assert (row.status, row.why, row.error) == ("wrong", "the gradient is NaN", None)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_rule_that_returns_no_number_is_said_to(number: float) -> None:
    @jax.custom_vjp
    def broken(x: Any) -> Any:
        return jnp.sin(x)

    broken.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x) + jnp.where(x > 0, number, 0.0),))
    found = rule(proof(lambda w, x: broken(x @ w).sum()), "broken")
    kind = "NaN" if math.isnan(number) else "infinite"
    assert (found.status, found.why, found.allow) == ("wrong", f"x: {kind}, as the derivative is not", None)


@pytest.mark.slow
def test_a_wrong_rule_at_a_kink_is_still_wrong() -> None:
    found = proof(lambda w, x: half_squared(jax.nn.relu(x @ w) + 1.0).sum(), jnp.zeros((3, 4)))
    assert rule(found, "half_squared").status == "wrong"
    assert rule(found, "relu").status == "not smooth here"


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [jnp.float32, jnp.bfloat16])
def test_a_model_that_computes_in_few_digits_is_no_false_alarm(narrow: Any) -> None:
    found = proof(lambda w, x: jnp.tanh(x.astype(narrow) @ w.astype(narrow)).astype(jnp.float32).sum())
    assert set(statuses(found).values()) == {"correct"}


@pytest.mark.slow
def test_a_model_that_does_not_run_in_float64_is_checked_by_its_own_operations() -> None:
    def loss(w: Any, x: Any) -> Any:
        start = jnp.zeros((2, 4), jnp.float32)
        return jnp.sin(lax.scan(lambda carry, _: (carry + x @ w, None), start, None, length=2)[0]).sum()

    found = proof(loss)
    assert found.verdict == "correct"
    assert "does not run in float64" in found.notes[0]
    assert 1e-8 < max(row.expected or 0.0 for row in found.rows if row.what.startswith("param_grad")) < 0.05


STOPS: dict[str, Callable[[Any, Any], Any]] = {
    "a factor": lambda w, x: (lax.stop_gradient(jnp.sin(w)) * w).sum(),
    "a straight-through rounding": lambda w, x: (x @ (w + lax.stop_gradient(jnp.round(w) - w))).sum(),
    "an input": lambda w, x: (lax.stop_gradient(x) @ w).sum() + jnp.sin(x).sum(),
    "in every iteration of a scan": lambda w, x: lax.scan(
        lambda carry, row: (carry + (lax.stop_gradient(jnp.exp(row)) * row).sum(), None), 0.0, w
    )[0],
    "in a loop of unknown length": lambda w, x: (
        (x @ w).sum()
        * lax.while_loop(
            lambda state: state[0] < 3,
            lambda state: (state[0] + 1, state[1] + lax.stop_gradient(w * w).sum()),
            (0, 1.0),
        )[1]
    ),
    "in the system of a linear solve": lambda w, x: (
        jax.scipy.sparse.linalg.cg(lambda y: lax.stop_gradient(jnp.abs(w[0]) + 1) * y, jnp.sin(w[1]))[0].sum()
        + (x @ w).sum()
    ),
    "in a branch": lambda w, x: lax.cond(x[0, 0] < 100.0, lambda a: (lax.stop_gradient(a) * a).sum(), jnp.sum, w),
}


@pytest.mark.slow
def test_stopped_values_count_as_constant() -> None:
    found = proof(together(STOPS), dict.fromkeys(STOPS, W))
    assert set(statuses(found).values()) == {"correct"}


def _chosen(w: Any, x: Any) -> Any:
    return jax.vmap(lambda y: lax.cond(y[0] > 0, jnp.sin, jnp.cos, y @ w))(x).sum()


def _scanned_choice(w: Any, x: Any) -> Any:
    def body(y: Any, _: Any) -> tuple[Any, None]:
        return lax.cond(y[0] > 0, jnp.sin, jnp.cos, y * w[0, 0]), None

    return jax.vmap(lambda y: lax.scan(body, y, None, length=2)[0])(x @ w).sum()


#: Losses, and whether what is stopped in them is made of parameters and counts in a derivative.
STOPPED: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    **{name: (loss, name not in ("an input", "in the system of a linear solve")) for name, loss in STOPS.items()},
    "half of a cross-entropy": (lambda w, x: jax.nn.logsumexp(x @ w) - lax.stop_gradient(x @ w)[0, 0], True),
    "the maximum that a softmax subtracts": (lambda w, x: jax.nn.log_softmax(x @ w)[0, 0], False),
    "the maximum of a sum of exponentials": (lambda w, x: jax.nn.logsumexp(x @ w), False),
    "a condition": (lambda w, x: jnp.where(lax.stop_gradient(w) > 0, w, 2 * w).sum() + x.sum(), False),
    "what vmap makes of a condition": (_chosen, False),
    "what vmap makes of a condition in a loop": (_scanned_choice, False),
    "a loop over what is stopped": (
        lambda w, x: lax.scan(lambda y, v: (y * lax.stop_gradient(v[0]) + v[1], None), x[0], w)[0].sum(),
        True,
    ),
}


@sampled("name", STOPPED)
def test_a_note_has_the_places_of_stopped_values(name: str) -> None:
    loss, is_told = STOPPED[name]
    found = proof(loss)
    told = [note.rpartition(":")[0] for note in found.notes]
    assert told == (["the values of stop_gradient count as constant: test_rules.py"] if is_told else [])
    assert [place.rpartition(":")[0] for place in found.stopped] == (["test_rules.py"] if is_told else [])


@pytest.mark.slow
@pytest.mark.parametrize(("inner", "verdict"), [(squared, "correct"), (half_squared, "wrong")])
def test_a_draw_of_a_gamma_distribution_has_the_derivative_of_a_quantile(inner: Any, verdict: str) -> None:
    found = proof(lambda w, x: jax.random.gamma(jax.random.key(0), 1.0 + inner(x @ w)).sum())
    assert found.verdict == verdict
    assert found.notes[0].startswith("the derivative of draws of gamma distributions counts as right")


@pytest.mark.slow
def test_a_wrong_rule_next_to_a_stopped_value_is_still_wrong() -> None:
    found = proof(lambda w, x: (lax.stop_gradient(jnp.sin(w)) * half_squared(w)).sum())
    assert (rule(found, "half_squared").status, statuses(found)["param_grad/value"]) == ("wrong", "wrong")


def test_a_gradient_that_is_zero_but_for_rounding_is_not_the_worst_of_those_that_are_compared() -> None:
    def loss(variables: Any, x: Any) -> Any:
        return jax.nn.log_softmax(jnp.sin(x @ variables["w"]) + variables["shift"])[:, 0].sum()

    found = proof(loss, {"w": W, "shift": jnp.float32(0.3)})
    row = next(row for row in found.rows if row.what == "observed gradients against jax.grad")
    assert row.status == "correct"
    assert row.expected is not None
    assert row.expected <= 1e-4
    assert row.why == "without 1 gradient that rounding alone decides"


@pytest.mark.slow
def test_a_gradient_that_rounding_changes_by_much_says_why_its_error_may_be_large() -> None:
    def loss(variables: Any, x: Any) -> Any:
        x = x @ variables["w"]
        for _ in range(10):  # a chaotic map, whose error doubles
            x = 4 * x * (1 - x)
        return x.sum()

    found = proof(loss, {"w": 0.1 * W})
    row = next(row for row in found.rows if row.what == "observed gradients against jax.grad")
    assert row.status == "correct"
    assert row.expected is not None
    assert row.expected > 1e-3
    assert (row.why or "").startswith(
        "rounding counts for much here: the last bit of every argument changes this gradient"
    )


def test_a_loss_that_is_another_program_each_time_it_is_traced_is_said_to_be_that() -> None:
    factors = np.random.default_rng(0)
    found = proof(lambda w, x: jnp.square(x @ w).mean() * factors.random())
    row = next(row for row in found.rows if row.what == "observed gradients against jax.grad")
    assert row.status == "wrong"
    assert (row.why or "").startswith("the loss is another program each time it is traced")


def test_a_seed_may_be_negative_and_a_tolerance_is_a_number() -> None:
    model = Model.of_values("model", lambda w, x: jnp.square(x @ w).mean(), W, X)
    assert prove(model, Arguments.of(W, X), Timings(), ProofOptions(seed=-1)).verdict == "correct"
    with pytest.raises(UsageError, match="expected a number"):
        ProofOptions(tolerance=float("nan"))


def test_a_model_of_the_zoo_is_right() -> None:
    case = ZOO["mlp"]
    found = proof(case.model.loss, *case.arguments())
    assert found.verdict == "correct"
    assert set(statuses(found).values()) == {"correct"}
    assert all(row.error <= row.expected < 1e-5 for row in found.rows if row.what.startswith("param_grad"))  # type: ignore[operator]


@jax.custom_vjp
def rounded(x: Any) -> Any:
    return jnp.round(4.0 * x) / 4.0


rounded.defvjp(lambda x: (rounded(x), None), lambda _, g: (g,))


@jax.custom_vjp
def clipped_backward(x: Any) -> Any:
    return jnp.sin(x)


clipped_backward.defvjp(lambda x: (jnp.sin(x), None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


@jax.custom_vjp
def mean_product(x: Any, y: Any) -> Any:
    return (x * y).mean(axis=0)


mean_product.defvjp(
    lambda x, y: (mean_product(x, y), (x, y)),
    lambda kept, g: (g[None] * kept[1], -g[None] * kept[0] / kept[0].shape[0]),
)

QUANTISED: dict[str, Callable[[Any, Any], Any]] = {
    "quantised": lambda w, x: jnp.square(x @ rounded(w)).sum(),
    "in a loop": lambda w, x: lax.scan(lambda c, row: (c + jnp.sin(rounded(row) * row).sum(), None), 0.0, w)[0],
    "in a branch": lambda w, x: lax.cond(x[0, 0] < 100.0, lambda a: jnp.cos(rounded(a)).sum(), jnp.sum, w),
    "without": lambda w, x: jnp.sin(x @ w).sum(),
}


def test_with_an_allowed_rule_the_rest_of_each_gradient_is_checked() -> None:
    found = proof(together(QUANTISED), dict.fromkeys(QUANTISED, W), allowed=("rounded",))
    assert found.verdict == "correct"
    assert {row.status for row in found.rules} == {"excused"}
    assert {row.status for row in found.gradients} == {"correct"}
    why = {row.what: row.why for row in found.gradients}
    assert why["param_grad/quantised"] == "made through the rule of rounded, which counts as right"
    assert why["param_grad/without"] is None
    wrong = proof(together(QUANTISED), dict.fromkeys(QUANTISED, W))
    assert {row.what for row in wrong.gradients if row.status == "wrong"} == {
        f"param_grad/{name}" for name in QUANTISED if name != "without"
    }


@pytest.mark.slow
def test_an_allowed_rule_excuses_no_other() -> None:
    loss = lambda w, x: half_squared(x @ rounded(w)).sum()  # noqa: E731
    found = proof(loss, allowed=("rounded",))
    assert (rule(found, "rounded").status, rule(found, "half_squared").status) == ("excused", "wrong")
    assert statuses(found)["param_grad/value"] == "wrong"


def test_what_is_made_through_a_rule_that_is_not_linear_is_excused() -> None:
    losses = {"through": lambda w, x: clipped_backward(x @ w).sum(), "without": lambda w, x: jnp.sin(x @ w).sum()}
    found = proof(together(losses), dict.fromkeys(losses, W), allowed=("clipped_backward",))
    status = statuses(found)
    assert (status["param_grad/through"], status["param_grad/without"]) == ("excused", "correct")


def test_an_unknown_allowed_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="calls no function round with a custom rule") as refused:
        proof(QUANTISED["quantised"], allowed=("round",))
    assert refused.value.hint == "did you mean rounded?"


@pytest.mark.slow
def test_a_wrong_rule_is_reported_by_argument_and_factor() -> None:
    found = proof(lambda w, x: mean_product(jnp.tanh(w), jnp.cos(w)).sum() + half_squared(x).sum())
    product, half = rule(found, "mean_product"), rule(found, "half_squared")
    assert product.why is not None
    first, second = product.why.split("; ")
    assert first.endswith(": 3 times the derivative, the length of its axis 0")
    assert second.endswith(": -1 times the derivative")
    assert (len(product.arguments), product.factor) == (2, None)
    assert (half.factor, half.why) == (0.5, f"{half.arguments[0]}: 0.5 times the derivative")
    assert half.arguments[0].endswith("(input/value)")
    assert {row.what: row.factor for row in found.gradients}["input_grad/value"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_an_input_that_a_rule_refuses_is_a_constant(factor: float) -> None:
    rated = rated_by(factor)
    found = proof(lambda w, batch: rated(batch["x"] @ w, batch["rate"]).sum(), W, {"x": X, "rate": jnp.float32(2.0)})
    status = "correct" if factor == 1.0 else "wrong"
    assert rule(found, "rated").status == status
    assert statuses(found)["param_grad/value"] == status
    assert "input_grad/rate" not in statuses(found)
    assert not found.notes


@jax.custom_jvp
def solved(x: Any) -> tuple[Any, Any]:
    """A solution, and how far it is from the exact one."""
    return jnp.sin(x), jnp.cos(3.0 * x).sum()


@solved.defjvp
def _solved_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (along,) = primals, tangents
    made = solved(x)
    return made, (jnp.cos(x) * along, jnp.zeros_like(made[1]))


@jax.custom_jvp
def converged(solution: Any, residual: Any) -> Any:
    """The solution, or NaN where the solver has not converged."""
    return jnp.where(residual < 1e6, solution, jnp.nan)


converged.defjvp(lambda primals, tangents: (converged(*primals), tangents[0]))


@pytest.mark.slow
def test_an_output_whose_gradient_the_next_rule_ends_does_not_count() -> None:
    found = proof(lambda w, x: jnp.square(converged(*solved(x @ w))).sum())
    assert (rule(found, "solved").status, found.verdict) == ("correct", "correct")

    def with_residual(w: Any, x: Any) -> Any:
        solution, residual = solved(x @ w)
        return jnp.square(solution).sum() + residual

    used = proof(with_residual)
    assert rule(used, "solved").status == "wrong"


@pytest.mark.slow
def test_a_truth_value_that_the_program_states_may_choose_what_a_rule_does() -> None:
    @jax.custom_jvp
    def chosen(x: Any, doubled: Any) -> Any:
        return jnp.where(doubled, 2.0 * x, x)

    @chosen.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return chosen(*primals), jnp.where(primals[1], 2.0, 1.0) * tangents[0]

    found = proof(lambda w, x: chosen(x @ w, True).sum())
    assert rule(found, "chosen").status == "correct"


@jax.custom_vjp
def summed_narrowly(x: Any, w: Any) -> Any:
    return x @ w


def _summed_narrowly_backward(kept: Any, g: Any) -> Any:
    x, w = kept
    terms = (x[:, :, None] * g[:, None, :]).astype(jnp.bfloat16)
    return g @ w.T, (terms[0] + terms[1]).astype(w.dtype)


summed_narrowly.defvjp(lambda x, w: (x @ w, (x, w)), _summed_narrowly_backward)


def test_an_error_of_the_size_of_rounding_is_said_to_be_that_of_the_type_in_which_a_rule_computes() -> None:
    found = proof(lambda w, x: jnp.square(summed_narrowly(x, w)).sum())
    assert rule(found, "summed_narrowly").status == "wrong"
    assert "its error may be rounding: the rule computes in bfloat16" in str(rule(found, "summed_narrowly").why)


def _on_the_host(x: Any) -> Any:
    return jax.pure_callback(lambda values: values * values, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


square_on_the_host = jax.custom_vjp(_on_the_host)
square_on_the_host.defvjp(lambda x: (_on_the_host(x), x), lambda x, g: (2 * x * g,))


def test_what_computes_in_a_narrow_type_and_cannot_in_another_is_said_to_be_too_coarse_for_differences() -> None:
    def loss(w: Any, x: Any) -> Any:
        return square_on_the_host(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32).sum()

    row = next(row for row in proof(loss).rows if row.what.startswith("param_grad"))
    assert row.status == "not checked"
    assert "the loss is computed in bfloat16 at test_rules.py:" in str(row.why)


@jax.custom_vjp
def _saved(x: Any) -> Any:
    return jnp.full((4, *x.shape), jnp.inf).at[:2].set(jnp.stack([jnp.sin(x), x * x]))


_saved.defvjp(lambda x: (_saved(x), x), lambda x, d: (d[0] * jnp.cos(x) + 2.0 * d[1] * x,))


@jax.custom_vjp
def _half_saved(x: Any) -> Any:
    return jnp.full((4, *x.shape), jnp.inf).at[:2].set(jnp.stack([jnp.sin(x), x * x]))


_half_saved.defvjp(lambda x: (_half_saved(x), x), lambda x, d: (d[0] * jnp.cos(x) + d[1] * x,))


@jax.custom_vjp
def _logarithm(x: Any) -> Any:
    return jnp.log(jnp.maximum(x - x[0, 0], 0.0))


_logarithm.defvjp(lambda x: (_logarithm(x), x), lambda x, d: (d / jnp.maximum(x - x[0, 0], 0.0),))


def test_elements_that_are_infinite_do_not_count_where_the_rule_is_finite_without_them() -> None:
    found = proof(lambda w, x: _saved(x @ w)[:2].sum() + _half_saved(x @ w)[:2].sum())
    assert rule(found, "_saved").status == "correct"
    assert rule(found, "_half_saved").status == "wrong"


@pytest.mark.slow
def test_a_function_that_is_not_finite_is_said_to_be_not_finite_and_not_the_loss() -> None:
    found = rule(proof(lambda w, x: jnp.exp(_logarithm(x @ w)).sum()), "_logarithm")
    assert (found.status, found.why) == ("not checked", "the function is not finite near these values")
