"""The function that has a rule is the one that the user wrote or calls, and not one of a library that decorates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.timings import Timings
from gradscope.proof.proving import ProofRow, prove
from gradscope.tracing.loading.model import Model

W = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
X = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)


def _rule(function: Callable[[Any, Any], Any]) -> ProofRow:
    """Returns the row of the only rule of a loss that calls a function."""

    def loss(weights: Any, batch: Any) -> Any:
        return jnp.square(function(batch["x"] @ weights["w"], weights["w"][0, 0])).sum()

    variables, batch = {"w": W}, {"x": X}
    found = prove(Model.of_values("model", loss, variables, batch), Arguments.of(variables, batch), Timings())
    (row,) = [each for each in found.rows if each.what.startswith("custom rule of ")]
    return row


@pytest.mark.slow
def test_a_function_of_equinox_with_a_forward_rule_has_its_own_name_and_line() -> None:
    eqx = pytest.importorskip("equinox")

    @eqx.filter_custom_jvp
    def squashed(x: Any, scale: Any) -> Any:
        return jnp.tanh(x) * scale

    @squashed.def_jvp
    def _(primals: Any, tangents: Any) -> Any:
        (x, scale), (dx, dscale) = primals, tangents
        return squashed(x, scale), 2.0 * dx * (1.0 - jnp.tanh(x) ** 2) * scale + dscale * jnp.tanh(x)

    row = _rule(squashed)
    assert (row.status, row.why) == ("wrong", "argument 1: 2 times the derivative")
    assert row.what.startswith("custom rule of squashed, used at test_decorated_rules.py:")
    assert (row.source or "").startswith("test_decorated_rules.py:")


def test_the_arguments_of_a_function_of_equinox_are_not_called_as_those_of_its_wrapper() -> None:
    eqx = pytest.importorskip("equinox")

    @eqx.filter_custom_vjp
    def squashed(x: Any, scale: Any) -> Any:
        return jnp.tanh(x) * scale

    @squashed.def_fwd
    def _(perturbed: Any, x: Any, scale: Any) -> Any:
        return jnp.tanh(x) * scale, None

    @squashed.def_bwd
    def _(kept: Any, gradient: Any, perturbed: Any, x: Any, scale: Any) -> Any:
        return 2.0 * gradient * (1.0 - jnp.tanh(x) ** 2) * scale

    row = _rule(lambda x, _: squashed(x, 0.5))
    assert (row.status, row.why) == ("wrong", "argument 1: 2 times the derivative")


@pytest.mark.slow
def test_a_root_is_called_as_the_function_of_jax_that_finds_it() -> None:
    def root(x: Any, _: Any) -> Any:
        def tangent(function: Callable[[Any], Any], y: Any) -> Any:
            return 2.0 * y / jax.jvp(function, (y,), (jnp.ones_like(y),))[1]

        return jax.lax.custom_root(lambda z: 4.0 * z - x, jnp.zeros_like(x), lambda _, z: z + x / 4.0, tangent)

    row = _rule(root)
    assert row.status == "wrong"
    assert row.what.startswith("custom rule of custom_root, used at test_decorated_rules.py:")


def test_a_function_of_a_library_that_another_one_decorates_has_its_own_name() -> None:
    eqx = pytest.importorskip("equinox")

    def checked(x: Any, _: Any) -> Any:
        return eqx.error_if(x, jnp.any(x > 1e6), "too large")

    row = _rule(checked)
    assert row.status == "correct"
    assert not row.what.startswith("custom rule of fn_wrap")
