"""`check` of a function with a rule that calls another one with a rule: the wrong one of both is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.proving import Proof, prove
from gradscope.tracing.loading.model import Model

_PARAMS = {"w": jnp.linspace(0.4, 1.2, 4)}
_X = jnp.linspace(0.3, 0.9, 4)


def _sine(factor: float) -> Callable[[Any], Any]:
    @jax.custom_vjp
    def inner(x: Any) -> Any:
        return jnp.sin(x)

    inner.defvjp(lambda x: (inner(x), x), lambda x, gradient: (factor * gradient * jnp.cos(x),))
    return inner


def _around(inner: Callable[[Any], Any], factor: float) -> Callable[[Any], Any]:
    """Returns a function whose rule differentiates another one by that one's own rule."""

    @jax.custom_vjp
    def outer(x: Any) -> Any:
        return 2.0 * inner(x)

    def forward(x: Any) -> Any:
        value, pull_back = jax.vjp(inner, x)
        return 2.0 * value, pull_back

    outer.defvjp(forward, lambda pull_back, gradient: pull_back(2.0 * factor * gradient))
    return outer


def proof(function: Callable[[Any], Any]) -> Proof:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(function(params["w"] * x) ** 2)

    return prove(Model.of_values("model", loss, _PARAMS, _X), Arguments.of(_PARAMS, _X), Timings())


@pytest.mark.slow
def test_a_wrong_rule_inside_is_named_beside_the_one_that_it_makes_wrong() -> None:
    inner, outer = proof(_around(_sine(3.0), 1.0)).rules
    assert outer.what.startswith("custom rule of outer")
    assert outer.why == "x: 3 times the derivative; its function calls inner, whose rule is wrong"
    assert inner.what.startswith("custom rule of inner")
    assert (inner.status, inner.why) == ("wrong", "inside outer; x: 3 times the derivative")


@pytest.mark.slow
def test_nothing_is_said_of_a_right_rule_inside_of_a_wrong_one() -> None:
    (outer,) = proof(_around(_sine(1.0), 3.0)).rules
    assert (outer.status, outer.why) == ("wrong", "x: 3 times the derivative")


@pytest.mark.slow
def test_right_rules_inside_each_other_are_right() -> None:
    assert proof(_around(_sine(1.0), 1.0)).verdict == "correct"


@pytest.mark.slow
@pytest.mark.parametrize("looped", [False, True])
def test_a_wrong_rule_is_found_inside_of_several_and_in_loops(looped: bool) -> None:
    inner = _sine(3.0)

    def repeated(x: Any) -> Any:
        return lax.scan(lambda value, _: (inner(value), None), x, None, 2)[0]

    middle = _around(repeated if looped else inner, 1.0)
    rows = proof(_around(middle, 1.0)).rules
    assert [row.what.split(",")[0] for row in rows] == [
        f"custom rule of {name}" for name in ("inner", "outer", "outer")
    ]
    assert [str(row.why).split(";")[0] for row in rows[:2]] == ["inside outer", "inside outer"]
    assert rows[0].factor == 3.0


@pytest.mark.slow
@pytest.mark.parametrize("typed", [True, False])
def test_a_wrong_rule_is_found_inside_of_one_that_runs_in_shards(typed: bool) -> None:
    outer = _around(_sine(3.0), 1.0)

    def loss(params: Any, x: Any) -> Any:
        mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
        specs = (PartitionSpec(), PartitionSpec("data"))
        run = lambda w, x: lax.pmean(jnp.mean(outer(w * x) ** 2), "data")  # noqa: E731
        return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=typed)(params["w"], x)

    rows = prove(Model.of_values("model", loss, _PARAMS, _X), Arguments.of(_PARAMS, _X), Timings()).rules
    assert [(row.what.split(",")[0], row.status) for row in rows] == [
        ("custom rule of inner", "wrong"), ("custom rule of outer", "wrong"),
    ]  # fmt: skip


def test_the_outputs_of_the_outer_function_may_have_several_types() -> None:
    inner = _sine(3.0)

    @jax.custom_vjp
    def outer(x: Any) -> Any:
        return inner(x), x.astype(jnp.float16)

    def forward(x: Any) -> Any:
        value, pull_back = jax.vjp(inner, x)
        return (value, x.astype(jnp.float16)), pull_back

    outer.defvjp(forward, lambda pull_back, both: (pull_back(both[0])[0] + both[1].astype(both[0].dtype),))

    def first_and_second(x: Any) -> Any:
        first, second = outer(x)
        return first + second.astype(first.dtype)

    assert [row.what.split(",")[0] for row in proof(first_and_second).rules] == [
        "custom rule of inner", "custom rule of outer",
    ]  # fmt: skip
