"""`check` of rules that return no gradient for data of the batch, as that of a loss does for its labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.proving import Proof, prove
from gradscope.tracing.loading.model import Model

_PARAMS = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4), "b": jnp.linspace(0.1, 0.4, 4)[None]}
_BATCH = {"x": jnp.linspace(-1.0, 1.5, 6).reshape(2, 3), "y": jnp.eye(4)[:2] * 0.8 + 0.05}


def proof(loss: Callable[[Any, Any], Any]) -> Proof:
    return prove(Model.of_values("model", loss, _PARAMS, _BATCH), Arguments.of(_PARAMS, _BATCH), Timings())


def _entropy(labels: Callable[[Any], Any], factor: float = 1.0) -> Any:
    @jax.custom_vjp
    def entropy(logits: Any, labels: Any) -> Any:
        return -(labels * jax.nn.log_softmax(logits)).sum()

    def backward(saved: Any, gradient: Any) -> Any:
        logits, given = saved
        total = given.sum(-1, keepdims=True)
        return factor * gradient * (jax.nn.softmax(logits) * total - given), labels(given)

    entropy.defvjp(lambda logits, labels: (entropy(logits, labels), (logits, labels)), backward)
    return entropy


def _none(_: Any) -> Any:
    return None


def _logits(params: Any, batch: Any) -> Any:
    return jnp.tanh(batch["x"] @ params["w"] + params["b"])


@pytest.mark.slow
@pytest.mark.parametrize("labels", [_none, jnp.zeros_like])
def test_a_rule_may_return_no_gradient_for_labels_and_its_row_says_so(labels: Callable[[Any], Any]) -> None:
    entropy = _entropy(labels)
    found = proof(lambda params, batch: entropy(_logits(params, batch), batch["y"]))
    assert found.verdict == "correct"
    (rule,) = found.rules
    assert rule.why == "it returns no gradient for labels (input/y), which is data"
    reasons = {row.what: row.why for row in found.gradients}
    assert reasons["input_grad/y"] == "constant in entropy, whose rule returns no gradient for data"
    assert reasons["input_grad/x"] is None


@pytest.mark.slow
def test_the_rest_of_the_rule_is_still_checked() -> None:
    entropy = _entropy(_none, 2.0)
    found = proof(lambda params, batch: entropy(_logits(params, batch), batch["y"]))
    (rule,) = found.rules
    assert (rule.status, rule.arguments, rule.factor) == ("wrong", ("logits",), 2.0)


@pytest.mark.slow
def test_labels_in_every_iteration_of_a_loop_and_for_each_example() -> None:
    entropy = _entropy(_none)

    def loss(params: Any, batch: Any) -> Any:
        def step(total: Any, _: Any) -> Any:
            return total + jax.vmap(entropy)(_logits(params, batch) * total, batch["y"]).sum(), None

        return lax.scan(step, jnp.ones(()), None, 2)[0]

    found = proof(loss)
    assert found.verdict == "correct"
    assert [row.why for row in found.rules] == ["it returns no gradient for labels (input/y), which is data"]


def test_another_call_may_give_the_rule_what_is_trained() -> None:
    entropy = _entropy(_none)

    def loss(params: Any, batch: Any) -> Any:
        logits = _logits(params, batch)
        return entropy(logits, batch["y"]) + entropy(logits, jax.nn.softmax(logits * 3.0))

    found = proof(loss)
    assert sorted(row.status for row in found.rules) == ["correct", "wrong"]
    assert [row.arguments for row in found.rules if row.status == "wrong"] == [("labels",)]


@pytest.mark.slow
def test_zeros_for_all_that_a_rule_is_given_are_wrong_though_it_is_data() -> None:
    scaled = jax.custom_vjp(lambda x: 3.0 * x)
    scaled.defvjp(lambda x: (3.0 * x, None), lambda _, gradient: (jnp.zeros_like(gradient),))

    def loss(params: Any, batch: Any) -> Any:
        return (scaled(batch["x"]) @ params["w"] + params["b"]).sum()

    found = proof(loss)
    assert found.verdict == "wrong"
    assert [(row.status, row.factor) for row in found.rules] == [("wrong", 0.0)]


@pytest.mark.slow
def test_zeros_for_data_that_a_parameter_enters_too_are_wrong() -> None:
    entropy = _entropy(_none)
    found = proof(lambda params, batch: entropy(_logits(params, batch), batch["y"] + params["b"]))
    assert [(row.status, row.arguments) for row in found.rules] == [("wrong", ("labels",))]
