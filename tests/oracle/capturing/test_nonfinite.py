"""Where a NaN or an infinity began: every known trap, planted in a line that the test knows, under every construct."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.dump.manifest.operation_facts import Origin
from tests.support.data import filled
from tests.support.sampled import sampled

#: Rows of operands; the trap is sprung by some element of the second row alone.
X = jnp.array([[1.0, 2.0, 3.0], [1.0, 0.0, -2.0]], jnp.float32)
WEIGHTS = {"one": filled(1.0, 3), "zero": filled(0.0, 3)}


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, x: sum(function(w, row) for row in x)


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    return plain(jax.jit(function))


def checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
    return plain(jax.checkpoint(function))


def scanned(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, x: jax.lax.scan(lambda total, row: (total + function(w, row), None), jnp.float32(0), x)[0]


def scanned_and_checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
    return scanned(jax.checkpoint(function))


def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, x: jax.vmap(function, in_axes=(None, 0))(w, x).sum()


def branching(function: Callable[..., Any]) -> Callable[..., Any]:
    return plain(lambda w, row: jax.lax.cond(row[0] > 0, function, lambda w, row: row.sum(), w, row))


CONSTRUCTS = [plain, jitted, checkpointed, scanned, scanned_and_checkpointed, mapped, branching]


def log_of_negative(w: Any, row: Any) -> Any:
    return jnp.log(row * w["one"] + 1).sum()  # here


def exp_overflow(w: Any, row: Any) -> Any:
    return jnp.exp(row * w["one"] * -50).sum()  # here


def zero_over_zero(w: Any, row: Any) -> Any:
    return (row / (row * w["one"])).sum()  # here


def masked_row(w: Any, row: Any) -> Any:
    scores = jnp.where(row > 0, row * w["one"], -jnp.inf) * jnp.where(row[1] == 0, jnp.inf, 1)
    return (scores - scores).sum()  # here


def half_precision(w: Any, row: Any) -> Any:
    narrow = (row * w["one"]).astype(jnp.float16)
    return (jnp.where(narrow < 0, jnp.float16(6e4), narrow) + jnp.float16(6e4)).astype(jnp.float32).sum()  # here


def double_where(w: Any, row: Any) -> Any:
    value = row * w["one"]
    return jnp.where(value > 0, jnp.sqrt(value), 0.0).sum()  # here


def narrow_exp(w: Any, row: Any) -> Any:
    return jnp.exp((row * w["one"] * 0 + 12).astype(jnp.float16)).astype(jnp.float32).sum()  # here


def norm_at_zero(w: Any, row: Any) -> Any:
    return jnp.sqrt(jnp.sum((row * w["zero"]) ** 2) + 0 * row.sum())  # here


def own_rule(w: Any, row: Any) -> Any:
    return broken(row * w["one"]).sum()  # here


@jax.custom_vjp
def broken(x: Any) -> Any:
    return x * 2


broken.defvjp(lambda x: (x * 2, x), lambda x, g: (g / (x - x),))


@jax.custom_vjp
def saving(x: Any) -> Any:
    return x * 2


saving.defvjp(lambda x: (x * 2, 1 / (x - x)), lambda saved, g: (g * saved,))

#: What is said of the causes that are not planted in every construct.
FORWARD = {
    exp_overflow: ("exp", "exp of 100 overflows"),
    zero_over_zero: ("div", "0 divided by 0"),
    masked_row: ("sub", "infinity minus infinity"),
    narrow_exp: ("exp", "exp of 12 overflows float16 (largest 65504)"),
    half_precision: ("add", "overflow of float16 (largest 65504)"),
}
BACKWARD = {
    norm_at_zero: ("sqrt", "the derivative of sqrt at 0"),
    own_rule: (
        "custom_vjp_call",
        "its own backward rule, of a gradient that is finite (element [0]): 1 divided by 0",
    ),
}


def line_of(function: Callable[..., Any]) -> str:
    lines, first = inspect.getsourcelines(function)
    (offset,) = (number for number, line in enumerate(lines) if line.endswith("# here\n"))
    return f"test_nonfinite.py:{first + offset}"


def origin_of(loss: Callable[..., Any]) -> Origin:
    with np.errstate(all="ignore"):
        (origin,) = gs.capture(loss, WEIGHTS, X, stats_only=True).manifest.origins
    return origin


@pytest.mark.slow
@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_a_forward_cause_is_found_in_every_construct(construct: Any) -> None:
    found = origin_of(construct(log_of_negative))
    assert (found.direction, found.primitive, found.source) == ("forward", "log", line_of(log_of_negative))
    assert "log of -1, which is negative" in found.why
    assert "clip" in found.repair
    if "scanned" in construct.__name__:
        assert found.iteration == (1,)


@pytest.mark.slow
@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_a_backward_cause_is_found_in_every_construct(construct: Any) -> None:
    found = origin_of(construct(double_where))
    assert (found.direction, found.primitive, found.source) == ("backward", "sqrt", line_of(double_where))
    assert "thrown away by the where" in found.why
    assert "so that the gradient that comes back is 0, and 0 times infinity is NaN" in found.why
    assert found.operands[0] in (0.0, -2.0)
    assert "where twice" in found.repair


#: Of rows of which one is zero: what throws the result of a root or a quotient away, and what only is downstream of it.
GUARDED = {
    "quotient": lambda r: jnp.where(length(r) > 0, r / length(r), 0.0),
    "norm": lambda r: jnp.where(r[:, :1] != 0, length(r), 0.0),
    "two of them": lambda r: jnp.where(r[:, :1] != 0, length(r), 0.0) + jnp.where(length(r) > 0, 2 * length(r), 0.0),
    "elements by hand": lambda r: jax.lax.select(length(r)[:, 0] > 0, jnp.sin(length(r)[:, 0]), r[:, 0]),
    "reciprocal": lambda r: jnp.where(r > 0, -1 / r, 0.0),
    "deviation": lambda r: jnp.where(r.std(-1, keepdims=True) > 0, (r - r.mean()) / r.std(-1, keepdims=True), 0.0),
    "in a loop": lambda r: jax.lax.map(lambda one: jnp.where(one > 0, jnp.sqrt(one), 0.0), jnp.abs(r)),
}
NOT_GUARDED = {
    "logsumexp": lambda r: jax.nn.logsumexp(directions(r), axis=-1),
    "logsumexp of products": lambda r: jax.nn.logsumexp(directions(r) @ jnp.ones((3, 3)), axis=-1),
    "leaky": lambda r: jax.nn.leaky_relu(directions(r)),
    "leaky, of products": lambda r: jax.nn.leaky_relu(directions(r) @ jnp.ones((3, 3))),
    "rectified by hand": lambda r: jnp.where(directions(r) > 0, directions(r), 0.0),
    "dead in the next layer": lambda r: jnp.where((h := length(r) @ jnp.ones((1, 2)) - 1e-9) > 0, h, 0.0),
    "deviation": lambda r: jax.nn.logsumexp((r - r.mean(-1, keepdims=True)) / (r.std(-1, keepdims=True) + 1e-6), -1),
    "taken": lambda r: jnp.where(length(r) >= 0, directions(r), 0.0),
    "masked by a product": lambda r: jnp.where(r[:, :1] >= -9, length(r), 1.0) * (r[:, :1] != 0).astype(jnp.float32),
    "left by a loop": lambda r: jax.lax.map(lambda one: (jnp.where(one > 0, n := length(one[None])[0], 0.0), n), r)[0],
}


def length(rows: Any) -> Any:
    return jnp.sqrt((rows**2).sum(-1, keepdims=True))


def directions(rows: Any) -> Any:
    return rows / jnp.maximum(length(rows), 1e-6)


def origin_of_rows(function: Callable[..., Any]) -> Origin:
    rows = jnp.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0]])
    with np.errstate(all="ignore"):
        captured = gs.capture(lambda w, x: function(x * w["one"][None]).sum() + w["zero"].sum(), WEIGHTS, rows)
    (origin,) = captured.manifest.origins
    return origin


@pytest.mark.slow
@sampled("function", GUARDED.values(), ids=GUARDED)
def test_the_where_that_throws_a_result_away_is_named(function: Callable[..., Any]) -> None:
    found = origin_of_rows(function)
    assert (found.direction, "thrown away by the where at test_nonfinite.py" in found.why) == ("backward", True)
    assert "where twice" in found.repair


@sampled("function", NOT_GUARDED.values(), ids=NOT_GUARDED)
def test_a_where_that_is_only_downstream_is_not_said_to_throw_the_result_away(function: Callable[..., Any]) -> None:
    found = origin_of_rows(function)
    assert (found.direction, found.primitive, "the where" in found.why) == ("backward", "sqrt", False)
    assert "where twice" not in found.repair
    assert "does not change the loss" in found.why


@sampled("trap", [*FORWARD, *BACKWARD], ids=lambda trap: trap.__name__)
def test_every_other_cause_is_recognised(trap: Any) -> None:
    found = origin_of(scanned(trap))
    primitive, why = (FORWARD | BACKWARD)[trap]
    assert (found.primitive, found.source) == (primitive, line_of(trap))
    assert found.direction == ("forward" if trap in FORWARD else "backward")
    assert why in found.why


@pytest.mark.slow
def test_of_two_causes_the_earlier_is_named() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.log(x[1] * w["one"] - 5).sum() + jnp.sqrt(x[1] * w["one"] - 5).sum()

    assert origin_of(loss).primitive == "log"


@pytest.mark.slow
def test_a_norm_is_distinguished_from_other_square_roots() -> None:
    found = origin_of(lambda w, x: jnp.linalg.norm(w["zero"]) + x.sum())
    assert "the derivative of a norm at 0" in found.why


@pytest.mark.slow
def test_what_was_bad_to_begin_with_is_said_to_be() -> None:
    def loss(w: Any, x: Any) -> Any:
        return (jnp.sin(x) * w["one"].sum()).sum()

    (origin,) = gs.capture(loss, WEIGHTS, X.at[0, 1].set(jnp.nan)).manifest.origins
    assert (origin.name, origin.primitive) == ("input/value", None)
    assert origin.why == "has 1 NaN and 0 Inf before anything is computed (element [0, 1])"
    assert origin.index == (0, 1)


def nan_for_some(w: Any, row: Any) -> Any:
    return jnp.where(row < 0, jnp.nan, row * w["one"]).sum()  # here


def nothing_over_zero(w: Any, row: Any) -> Any:
    return (row * w["one"] * 0 / np.array([1, 2, 0], np.float32)).sum()  # here


@pytest.mark.slow
@pytest.mark.parametrize(
    ("construct", "constant", "operand"), [(plain, nothing_over_zero, 0.0), (scanned, nan_for_some, np.nan)]
)
def test_a_constant_is_an_operand_like_any_other(construct: Any, constant: Any, operand: float) -> None:
    found = origin_of(construct(constant))
    assert (found.direction, found.source) == ("forward", line_of(constant))
    np.testing.assert_equal(found.operands[-1], operand)


@pytest.mark.slow
def test_an_infinity_that_is_meant_is_no_trouble() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("mask"):
            scores = jnp.where(x > 0, x * w["one"].sum(), -jnp.inf)
        return jax.nn.softmax(scores).sum()

    assert gs.capture(loss, WEIGHTS, X).manifest.origins == ()


def test_the_nan_is_searched_for_and_not_the_mask_before_it() -> None:
    def loss(w: Any, x: Any) -> Any:
        scores = jnp.where(x > 5, x * w["one"].sum(), -jnp.inf)  # every row is masked throughout
        return jax.nn.softmax(scores).sum()

    found = origin_of(loss)
    assert (found.primitive, found.operands) == ("sub", (-np.inf, -np.inf))


def test_the_iteration_of_a_while_loop_is_found() -> None:
    def iteration(state: Any) -> Any:
        return state[0] + 1, jnp.log(state[1] - 1)

    def loss(w: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda state: state[0] < 5, iteration, (0, x[0, 2] + 1))[1] * w["one"].sum()

    found = origin_of(loss)
    assert (found.name, found.primitive) == ("while", "log")
    assert found.why.endswith(", in iteration 2 of the while, of which the dump has the last")


def test_what_a_forward_rule_saves_is_not_made_by_the_backward_rule() -> None:
    found = origin_of(lambda w, x: saving(x * w["one"].sum()).sum())
    assert "the custom_vjp saving saved what is not finite in its own forward rule (element [0, 0]): 1 div" in found.why
    assert "epsilon" in found.repair


def test_an_operation_in_a_while_loop_is_named_in_the_iteration_that_the_dump_has() -> None:
    def iteration(state: Any) -> Any:
        with jax.named_scope("cell"):
            made = 1.0 / (state[0] - 4.0)
        return state[0] + 1.0, 0.0 * made

    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("loop"):
            return jax.lax.while_loop(lambda state: state[0] < 5, iteration, (0.0, x[0, 0]))[1] * w["one"].sum()

    dump = gs.capture(loss, WEIGHTS, X)
    (found,) = dump.manifest.origins
    assert (found.name, found.layer, found.iteration) == ("loop[4]/cell/div", "loop[4]/cell", (4,))
    assert f"activation/{found.layer}" in dump


@pytest.mark.slow
def test_a_gradient_that_ends_in_a_mask_is_not_what_spoils_the_gradients() -> None:
    def loss(w: Any, x: Any) -> Any:
        keep = x[:, 1] > 0
        scores = jax.nn.softmax(jnp.where(keep[:, None], x * w["one"][None], -jnp.inf))
        return (-jax.nn.log_softmax(scores)[:, 0] * keep.astype(jnp.float32)).sum()

    found = origin_of(loss)
    assert "every entry of the row is masked with -inf" in found.why
    assert ": log at" in found.why  # and not the multiplication by the mask


def test_the_zero_that_a_division_divides_by_is_named_with_its_place() -> None:
    found = origin_of(lambda w, x: jnp.where(x != 0, 1 / (x * w["one"][None]), 0.0).sum())
    assert (found.direction, found.index, found.operands) == ("backward", (1, 1), (1.0, 0.0))
    assert "1 divided by 0 (element [1, 1])" in found.why


def test_of_the_calls_of_a_helper_the_one_is_named_that_fails() -> None:
    def by_hand(scores: Any) -> Any:
        e = jnp.exp(scores)
        return e / e.sum(-1, keepdims=True)

    def loss(w: Any, x: Any) -> Any:
        return (by_hand(by_hand(x * w["one"][None]) * w["one"][None] - 60)[:, 0]).sum()

    captured = gs.capture(loss, WEIGHTS, X)
    calls = sorted({each.name for each in captured.manifest.entries if ":" in each.name and "by_hand" in each.name})
    quotients = [name for name in calls if name.partition("#")[0] == calls[-1].partition("#")[0]]
    (found,) = [each for each in captured.findings() if each.rule == "nonfinite"]
    assert len(quotients) == 2
    assert found.name == quotients[1]


def test_an_infinity_of_small_operands_is_no_overflow() -> None:
    found = origin_of(lambda w, x: jax.scipy.special.gammaln(jnp.abs(x) * w["one"][None]).sum())
    assert ("pole" in found.why, "overflow" in found.why) == (True, False)


@pytest.mark.parametrize("signs", [1.0, -1.0])
def test_a_maximum_over_windows_that_loses_nans_is_not_where_they_began(signs: float) -> None:
    weights = jnp.where(jnp.arange(4) % 2 == 0, signs, 1.0)  # infinities of one sign, or a NaN that is made of them

    def loss(w: Any, x: Any) -> Any:
        images = jnp.zeros((8, 4, 4, 32)) + x[1, 2] * w["one"][0]
        logs = jnp.log(images)  # here
        largest = jax.lax.reduce_window(logs, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.square(largest.reshape(-1)[:4] @ weights)

    found = origin_of(loss)
    assert (found.direction, found.primitive, found.source) == ("forward", "log", line_of(loss))
