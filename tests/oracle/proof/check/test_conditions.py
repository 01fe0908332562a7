"""`check` against rules that are right on one side of a condition and wrong on the other, and at kinks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.oracle.proof.check.test_rules import W, X, proof, rule

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


@jax.custom_vjp
def masked(x: Any, mask: Any) -> Any:
    return jnp.where(mask, jnp.sin(x), x * x)


def of_masked(kept: Any, g: Any) -> Any:
    x, mask = kept
    return jnp.where(mask, jnp.cos(x), 3.0 * x) * g, None


masked.defvjp(lambda x, mask: (masked(x, mask), (x, mask)), of_masked)


@jax.custom_vjp
def by_sum(x: Any) -> Any:
    return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)


by_sum.defvjp(
    lambda x: (by_sum(x), x), lambda x, g: (lax.cond(x.sum() > 0, jnp.cos, lambda x: -2.0 * jnp.sin(x), x) * g,)
)


@jax.custom_vjp
def steep(x: Any) -> Any:
    return jnp.where(x > 3.0, 4.0 * x, x)


steep.defvjp(lambda x: (steep(x), x), lambda x, g: (jnp.where(x > 3.0, 5.0, 1.0) * g,))


def scanned(masks: Any) -> Any:
    return lambda w, x: jnp.square(lax.scan(lambda y, mask: (masked(y, mask), None), x @ w, masks)[0]).sum()


def test_a_mask_of_another_iteration_shows_the_side_on_which_a_rule_is_wrong() -> None:
    masks = np.stack([np.ones(4, bool), np.zeros(4, bool)])
    found = rule(proof(scanned(masks)), "masked")
    assert (found.status, found.factor) == ("wrong", pytest.approx(1.5))
    assert str(found.why).startswith("where the condition at test_conditions.py:")
    assert "is false of all elements; " in str(found.why)
    assert rule(proof(scanned(masks[:1])), "masked").status == "correct"


@pytest.mark.slow
def test_another_call_shows_the_branch_in_which_a_rule_is_wrong() -> None:
    found = rule(proof(lambda w, x: by_sum(by_sum(jnp.abs(x @ w)) - 9.0).sum()), "by_sum")
    assert (found.status, found.factor) == ("wrong", pytest.approx(2.0))
    assert "is false; " in str(found.why)
    assert rule(proof(lambda w, x: by_sum(by_sum(jnp.abs(x @ w)) + 9.0).sum()), "by_sum").status == "correct"


@pytest.mark.slow
def test_another_size_of_an_operand_shows_where_a_rule_is_wrong() -> None:
    found = rule(proof(lambda w, x: steep(9.0 * jnp.exp(steep(jnp.tanh(x @ w)))).sum()), "steep")
    assert (found.status, found.factor) == ("wrong", pytest.approx(1.25))
    assert rule(proof(lambda w, x: steep(0.1 * jnp.exp(steep(jnp.tanh(x @ w)))).sum()), "steep").status == "correct"


def test_the_call_at_a_kink_is_shown_where_it_explains_a_gradient() -> None:
    def loss(parameters: Any, x: Any) -> Any:
        smooth = jax.nn.relu(x @ parameters["w"])
        return smooth.sum() + jax.nn.relu(jnp.zeros_like(smooth) + parameters["b"][None]).sum()

    found = proof(loss, {"w": W, "b": np.zeros(4, np.float32)})
    assert {row.what: row.status for row in found.gradients} == {
        "param_grad/b": "not smooth here", "param_grad/w": "correct", "input_grad/value": "correct",
    }  # fmt: skip
    at_kink = rule(found, "relu")
    assert (at_kink.status, at_kink.why) == ("not smooth here", "where two values in max are equal")
    without = proof(loss, {"w": W, "b": np.ones(4, np.float32)})
    assert (rule(without, "relu").status, rule(without, "relu").why) == ("correct", None)


@pytest.mark.slow
def test_a_right_rule_of_which_all_sides_are_taken_is_correct() -> None:
    def loss(w: Any, x: Any) -> Any:
        y, _ = lax.scan(
            lambda y, sign: (jax.nn.relu(sign * y) + jax.nn.elu(y - 1.0), None), x @ w, jnp.asarray([1.0, -1.0])
        )
        return jnp.square(y).sum()

    assert {row.status for row in proof(loss, W, X).rules} == {"correct"}


@jax.custom_vjp
def dropped(x: Any, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2.0 * x, 0.0)


def of_dropped(key: Any, g: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, g.shape), 2.0 * g, 0.0), None


dropped.defvjp(lambda x, key: (dropped(x, key), key), of_dropped)


@pytest.mark.slow
def test_a_rule_may_take_the_random_keys_that_a_loop_is_over() -> None:
    def loss(w: Any, x: Any) -> Any:
        keys = jax.random.split(jax.random.key(1), 3)
        return jnp.square(lax.scan(lambda y, key: (dropped(y + 1.0, key), None), x @ w, keys)[0]).sum()

    assert rule(proof(loss), "dropped").status == "correct"


@jax.custom_vjp
def tripled(x: Any, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2.0 * x, 0.0)


tripled.defvjp(
    lambda x, key: (tripled(x, key), key),
    lambda key, g: (jnp.where(jax.random.bernoulli(key, 0.5, g.shape), 3.0 * g, 0.0), None),
)


@jax.custom_vjp
def turned(x: Any, by: Any) -> Any:
    return x * by.real


turned.defvjp(
    lambda x, by: (turned(x, by), (x, by)),
    lambda kept, g: (g * kept[1].real, jax.lax.complex((g * kept[0]).sum(), jnp.float32(0))),
)


def test_a_random_key_among_the_operands_is_no_number_that_chooses() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.square(sum(tripled(x @ w, each) for each in jax.random.split(jax.random.key(3), 2))).sum()

    found = rule(proof(loss), "tripled")
    assert (found.status, found.factor) == ("wrong", pytest.approx(1.5))
    assert found.why == "x: 1.5 times the derivative"


def test_a_complex_number_chooses_by_its_sign() -> None:
    factors = np.asarray([1 + 2j, -1 - 2j], np.complex64)
    found = proof(lambda w, x: sum(jnp.square(turned(x @ w, by)).sum() for by in jnp.asarray(factors)))
    assert rule(found, "turned").status == "correct"
