"""Derivative rules that are told which operands are constant see what they see without us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.instrument.query.capture_spec import CaptureSpec
from tests.oracle.engine import assert_close, check_gradients, observe
from tests.oracle.instrument.derivatives.constant_rate import rated_by
from tests.support.data import evenly
from tests.support.sampled import sampled

WEIGHTS = {"w": evenly(-1.0, 1.0, 3, 3), "gain": jnp.float32(1.5)}
BATCH = {"x": evenly(-1.0, 2.0, 4, 3), "labels": jnp.array([0, 2, 1, 1])}

#: `rate * tanh(x)`, whose rule refuses a rate that is differentiated.
rated = rated_by()


@jax.custom_jvp
def choosy(x: Any, rate: Any) -> Any:
    """`rate * sin(x)`, whose rule refuses a rate that is differentiated."""
    return rate * jnp.sin(x)


@choosy.defjvp
def choosy_jvp(primals: Any, tangents: Any) -> Any:
    (x, rate), (of_x, of_rate) = primals, tangents
    assert type(of_rate) is jax.custom_derivatives.SymbolicZero
    return choosy(x, rate), rate * jnp.cos(x) * of_x


choosy.defjvp(choosy_jvp, symbolic_zeros=True)


def of_a_constant(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    with jax.named_scope("rate"):
        rate = jnp.exp(jnp.arange(3.0)).mean()
    with jax.named_scope("ruled"):
        return rule(batch["x"] @ weights["w"], rate)


def of_labels(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    with jax.named_scope("rate"):
        rate = jax.nn.one_hot(batch["labels"], 3).sum()
    with jax.named_scope("ruled"):
        return rule(batch["x"] @ weights["w"], rate)


def of_a_stopped_weight(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    with jax.named_scope("rate"):
        rate = lax.stop_gradient(weights["gain"]) * 2.0
    with jax.named_scope("ruled"):
        return rule(batch["x"] @ weights["w"], rate) * weights["gain"]


def in_a_scan(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    def body(carry: Any, number: Any) -> Any:
        x, rate = carry
        with jax.named_scope("rate"):
            rate = rate * 0.5 + number
        with jax.named_scope("ruled"):
            return (rule(x @ weights["w"], rate), rate), None

    return lax.scan(body, (batch["x"], jnp.float32(1.0)), jnp.arange(3.0))[0][0]


def in_a_branch(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    with jax.named_scope("rate"):
        rate = jnp.cos(jnp.float32(0.3) * len(batch["x"]))

    def taken(x: Any) -> Any:
        with jax.named_scope("ruled"):
            return rule(x, jnp.exp(rate))

    return lax.cond(batch["labels"][0] == 0, taken, lambda x: x, batch["x"] @ weights["w"])


def under_a_checkpoint(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    return jax.checkpoint(lambda x: of_a_constant(rule, weights, {**batch, "x": x}))(batch["x"])


def of_other_constants(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    return sum(program(rule, weights, batch) for program in (of_labels, of_a_stopped_weight, under_a_checkpoint))


#: One without a frame, and the frames whose rules hand on what is constant.
PROGRAMS = (of_a_constant, in_a_scan, in_a_branch)


@pytest.mark.slow
@sampled(
    ("program", "rule"),
    [*((program, rule) for program in PROGRAMS for rule in (rated, choosy)), (of_other_constants, rated)],
    ids=lambda each: each.__name__,
)
def test_what_is_constant_stays_so(program: Any, rule: Any) -> None:
    def loss(weights: Any, batch: Any) -> Any:
        return jnp.square(program(rule, weights, batch)).mean()

    everything = CaptureSpec(operations=True, terms=True, operands=True)
    for observation in (check_gradients(loss, WEIGHTS, BATCH), observe(loss, WEIGHTS, BATCH, spec=everything)):
        seen = observation.seen
        with_gradient = {name for name, each in seen.items() if each.gradient is not None}
        assert with_gradient >= {name for name in seen if "ruled" in name.split("/")[-1]}
        assert any("rate" in name for name in seen)
        assert not any("rate" in name for name in with_gradient)


@jax.custom_jvp
def refusing(x: Any) -> Any:
    """The identity, which refuses to be differentiated."""
    return x


@refusing.defjvp
def refusing_jvp(primals: Any, tangents: Any) -> Any:
    raise AssertionError


@pytest.mark.slow
def test_a_rule_that_is_not_run_stays_so() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("rate"):
            rate = jnp.exp(jnp.float32(-1.0))

        def body(x: Any, _: Any) -> Any:
            with jax.named_scope("made"):
                return refusing(rate) * jnp.tanh(x @ weights["w"]), None

        return lax.scan(body, batch["x"], None, length=2)[0].sum()

    check_gradients(loss, WEIGHTS, BATCH)
    seen = observe(loss, WEIGHTS, BATCH, spec=CaptureSpec(operations=True, terms=True, operands=True)).seen
    assert seen["rate"].gradient is None
    assert seen["made[0]"].gradient is not None


@pytest.mark.slow
def test_a_constant_has_its_gradient_where_nothing_asks() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("ruled"):
            x = rated(batch["x"] @ weights["w"], jnp.float32(2.0))
        with jax.named_scope("target"):
            target = jax.nn.one_hot(batch["labels"], 3)
        return jnp.square(x - target).mean()

    observation = observe(loss, WEIGHTS, BATCH)
    ruled = 2.0 * jnp.tanh(BATCH["x"] @ WEIGHTS["w"])
    target = jax.nn.one_hot(BATCH["labels"], 3)
    assert_close(observation.seen["target"].gradient, 2.0 * (target - ruled) / target.size)


def test_the_ledger_says_which_rule_is_informed() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        return of_a_constant(rated, weights, batch).sum()

    captured = gs.capture(loss, WEIGHTS, BATCH)
    (line,) = (each for each in captured.ledger.missing if each.name == "rate" and each.family == "activation_grad")
    assert line.reason == "disconnected"
    assert line.detail.startswith("constant: it is made of nothing that is differentiated, and rated at ")


def test_a_constant_that_is_requested_by_name_is_differentiated() -> None:
    @jax.custom_vjp
    def with_rule(x: Any, rate: Any) -> Any:
        return rate * x

    def backward(kept: Any, cotangent: Any) -> Any:
        x, rate = kept
        return cotangent * rate, (cotangent * x).sum()

    with_rule.defvjp(lambda x, rate: (x.value * rate.value, (x.value, rate.value)), backward, symbolic_zeros=True)

    def loss(weights: Any, batch: Any) -> Any:
        return of_a_constant(with_rule, weights, batch).sum()

    (gradient,) = gs.gradients(loss, (WEIGHTS, BATCH), ys="0", xs=["rate"])
    np.testing.assert_allclose(gradient, (BATCH["x"] @ WEIGHTS["w"]).sum(), rtol=1e-6)


def of_an_input(rule: Callable[..., Any], weights: Any, batch: Any) -> Any:
    rate = batch["x"].mean()
    with jax.named_scope("ruled"):
        y = rule(weights["gain"] * batch["side"], rate)
    with jax.named_scope("head"):
        return jnp.square(y @ weights["w"]).mean()


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rated, choosy])
def test_an_input_that_only_a_dump_differentiates_is_left_to_the_rule(rule: Any) -> None:
    batch = BATCH | {"side": jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)}

    def loss(weights: Any, batch: Any) -> Any:
        return of_an_input(rule, weights, batch)

    seen = gs.capture(loss, WEIGHTS, batch)
    expected = jax.grad(loss)(WEIGHTS, batch)
    for name, gradient in expected.items():
        # One element is a sum that cancels.
        np.testing.assert_allclose(seen[f"param_grad/{name}"], gradient, rtol=1e-5, atol=1e-7)
    # Another input has its gradient, which is the rule's own.
    of_side = jax.grad(lambda side: loss(WEIGHTS, batch | {"side": side}))(batch["side"])
    np.testing.assert_allclose(seen["input_grad/side"], of_side, rtol=1e-5)
    (line,) = (line for line in seen.ledger.missing if line.name == "x" and line.family == "input_grad")
    assert line.reason == "disconnected"
    assert "has a rule that may notice" in line.detail


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [False, True])
def test_a_loop_of_constants_beside_a_rule_has_nothing_to_do_with_it(mapped: bool) -> None:
    @jax.custom_vjp
    def product(w: Any, x: Any) -> Any:
        return x @ w

    product.defvjp(lambda w, x: (x @ w, (w, x)), lambda kept, g: (kept[1].T @ g, g @ kept[0].T))

    def grown(x: Any) -> Any:
        def step(x: Any) -> Any:
            with jax.named_scope("grow"):
                return 2.0 * x + 1.0

        return lax.while_loop(lambda x: x.sum() < 50.0, step, lax.stop_gradient(jnp.abs(x)))

    def loss(weights: Any, batch: Any) -> Any:
        made = (jax.vmap(grown) if mapped else grown)(batch["x"])
        return (product(weights["w"], batch["x"]) * jnp.sin(made)).sum()

    seen = gs.capture(loss, WEIGHTS, BATCH)
    np.testing.assert_allclose(seen["param_grad/w"], jax.grad(loss)(WEIGHTS, BATCH)["w"], rtol=1e-5, atol=1e-6)
    (line,) = (line for line in seen.ledger.missing if "grow" in line.name)
    assert (line.family, line.reason) == ("activation_grad", "forward-only")
    assert line.detail.endswith("a loop that reverse mode cannot run backwards")
