"""`check` of wrong rules of functions of complex numbers: by which number, or that a conjugate is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.oracle.proof.check.test_rules import proof
from tests.support.data import evenly
from tests.support.sampled import sampled

Z = lax.complex(evenly(-1.0, 1.5, 2, 3), evenly(0.7, -0.4, 2, 3) ** 2)

WRONG: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any], str]] = {
    "as another library has it": (lambda z: jnp.abs(z) ** 2, lambda z, g: 2 * z * g, "the conjugate of the derivative"),
    "by half of it": (lambda z: jnp.abs(z) ** 2, lambda z, g: z * g, "0.5 times the conjugate of the derivative"),
    "of a factor": (
        jnp.square,
        lambda z, g: 2 * jnp.conj(z) * g,
        "the conjugate of the derivative, where what arrives is real",
    ),
    "turned": (jnp.square, lambda z, g: -2j * z * g, "-1j times the derivative"),
    "turned and stretched": (jnp.square, lambda z, g: (1 + 3j) * z * g, "(0.5+1.5j) times the derivative"),
    "another function": (lambda z: z * jnp.abs(z), lambda z, g: g * jnp.abs(z), "no multiple of the derivative"),
}


@sampled("name", WRONG)
def test_the_complex_factor_of_a_wrong_rule_is_told(name: str) -> None:
    function, backward, expected = WRONG[name]
    wrong = jax.custom_vjp(function)
    wrong.defvjp(lambda z: (function(z), z), lambda z, g: (backward(z, g),))
    with jax.numpy_dtype_promotion("standard"):
        found = next(each for each in proof(lambda z, _: jnp.square(jnp.abs(wrong(z) - 1)).sum(), Z).rules)
    assert found.status == "wrong"
    assert str(found.why).partition(": ")[2] == expected
