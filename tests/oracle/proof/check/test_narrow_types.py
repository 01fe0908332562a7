"""`check` of losses in bfloat16 and float16, or in one type alone: the same program is checked in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.oracle.proof.check.test_rules import W, X, half_squared, proof, rule, squared, statuses
from tests.support.sampled import sampled

HALF = jnp.bfloat16


@jax.custom_vjp
def tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def _of_tanh_gelu(x: Any, g: Any) -> tuple[Any]:
    t = jnp.tanh(0.7978845608 * (x + 0.044715 * x**3))
    return (g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (0.7978845608 + 0.1070322244 * x**2)),)


tanh_gelu.defvjp(lambda x: (tanh_gelu(x), x), _of_tanh_gelu)


def in_half(w: Any, x: Any) -> Any:
    return x.astype(HALF) @ w.astype(HALF)


def drawn(w: Any, x: Any) -> Any:
    """Rows of a table, in bfloat16, of which a mask leaves some, in a loop."""
    rows = w.astype(HALF)[jnp.array([0, 2, 2])]
    kept = jnp.where(jax.random.uniform(jax.random.key(0), rows.shape, HALF) < 0.7, 2 * rows, 0)
    summed, _ = lax.scan(lambda total, row: (0.5 * total + jnp.sort(row), None), jnp.zeros(4, HALF), kept)
    return (jax.nn.gelu(summed, approximate=False) * x.astype(HALF).sum()).astype(jnp.float32).sum()


RIGHT = {
    "operations, with constants in their own rules": drawn,
    "a rule with constants of few digits": lambda w, x: tanh_gelu(in_half(w, x)).sum(),
    "a loop and a branch": lambda w, x: lax.cond(
        x[0, 0] < 0, lambda y: squared(y).sum(), jnp.sum, lax.fori_loop(0, 2, lambda _, y: jnp.sin(y), in_half(w, x))
    ),
    "a checkpoint, and a value that is stopped": lambda w, x: jax.checkpoint(
        lambda y: (squared(y) * lax.stop_gradient(jnp.cos(y))).astype(jnp.float32).sum()
    )(in_half(w, x)),
    "a condition of each example": lambda w, x: jax.vmap(
        lambda y: y.sum() * lax.stop_gradient(lax.while_loop(lambda z: z.sum() < 9, lambda z: z + 1, jnp.abs(y)).sum())
    )(in_half(w, x)).sum(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: jax.nn.dot_product_attention(*[in_half(w, x)[None, :, None]] * 3).astype(jnp.float32).sum(),
        lambda w, x: jnp.tanh(lax.dot(x, w, precision=lax.DotAlgorithmPreset.BF16_BF16_F32)).sum(),
    ],
)
def test_a_product_may_state_its_algorithm(loss: Any) -> None:
    with jax.numpy_dtype_promotion("standard"):  # which JAX' attention needs
        found = proof(loss)
    assert set(statuses(found).values()) == {"correct"}


@sampled("name", RIGHT)
def test_what_is_right_in_bfloat16_is_correct(name: str) -> None:
    found = proof(RIGHT[name])
    assert set(statuses(found).values()) == {"correct"}
    assert "bfloat16 is too coarse for finite differences" in found.notes[-1]


@pytest.mark.parametrize(("exponent_bits", "mantissa_bits"), [(8, 7), (5, 10), (4, 3)])
def test_rounding_to_the_digits_of_a_narrow_type_is_taken_as_a_cast_to_it_is(
    exponent_bits: int, mantissa_bits: int
) -> None:
    found = proof(lambda w, x: jnp.sin(lax.reduce_precision(x @ w, exponent_bits, mantissa_bits)).sum())
    assert set(statuses(found).values()) == {"correct"}


@pytest.mark.slow
def test_a_wrong_rule_is_told_in_bfloat16_with_its_factor() -> None:
    found = proof(lambda w, x: jnp.sin(half_squared(in_half(w, x))).sum(), W.astype(HALF))
    assert (rule(found, "half_squared").status, rule(found, "half_squared").factor) == ("wrong", 0.5)
    assert found.gradients[0].status == "wrong"


@pytest.mark.slow
def test_a_rule_in_float8_is_held_to_more_digits_than_float8_has() -> None:
    def rounded(x: Any) -> Any:
        return x.astype(jnp.float8_e4m3fn).astype(x.dtype)

    nine_tenths = jax.custom_vjp(rounded)
    nine_tenths.defvjp(lambda x: (rounded(x), None), lambda _, g: (0.9 * g,))
    found = proof(lambda w, x: jnp.sin(nine_tenths(x @ w)).sum())
    assert (rule(found, "rounded").status, rule(found, "rounded").factor) == ("wrong", 0.9)


@pytest.mark.slow
def test_a_loss_of_float32_alone_is_checked_with_the_digits_of_float64() -> None:
    def loss(w: Any, x: Any) -> Any:
        summed, _ = lax.scan(lambda total, row: (total + squared(row @ w), None), jnp.zeros(4, jnp.float32), x)
        return summed.sum()

    found = proof(loss, W, X)
    assert "does not run in float64" in found.notes[0]
    assert set(statuses(found).values()) == {"correct"}
    assert max(row.expected or 0.0 for row in found.rules) < 1e-6


@pytest.mark.slow
def test_what_casts_to_float32_inside_is_checked_with_the_digits_of_float64() -> None:
    found = proof(lambda w, x: jnp.sin(squared(x.astype(jnp.float32) @ w.astype(jnp.float32))).sum())
    assert {row.status for row in found.rows} == {"correct"}
    assert max(row.expected or 0.0 for row in (*found.rules, *found.gradients)) < 1e-6
