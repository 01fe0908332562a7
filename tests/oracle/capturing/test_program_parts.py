"""Compiled in parts, a program computes what it computes as one; in float64, to the last digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.rewriting import program_parts
from gradscope.instrument.rewriting.program_parts import in_parts, is_compiled_in_parts
from gradscope.tracing.tracer import trace_loss
from tests.oracle.capturing.test_segmented import awkward, captured
from tests.oracle.zoo import ZOO
from tests.support.sampled import sampled


@pytest.fixture(autouse=True)
def _small_parts(x64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_parts, "_MANY", 20)
    monkeypatch.setattr(program_parts, "_PART", 7)


def deep(layers: int) -> Callable[..., Any]:
    def loss(w: Any, x: Any) -> Any:
        step = jax.jit(lambda x: jnp.tanh(x @ w + 1.0))
        for _ in range(layers):
            x = step(x)
        return x.sum()

    return loss


def awkward_arguments() -> tuple[Any, Any]:
    variables = {"shared": jnp.linspace(0.5, 1.5, 3)[None], "frozen": jnp.ones((1, 3)), "idle": jnp.ones(2)}
    return variables, (jax.random.key(0), jnp.bool_(True), jnp.linspace(-1.0, 2.0, 12).reshape(4, 3))


@pytest.mark.slow
@sampled(
    ("loss", "arguments"),
    [
        (awkward, awkward_arguments),
        (ZOO["mlp"].loss, ZOO["mlp"].arguments),
        (deep(8), lambda: (jnp.eye(3), jnp.ones((2, 3)))),
    ],
    ids=["awkward", "mlp", "calls"],
)
def test_a_dump_in_parts_has_the_tensors_of_one_program(
    loss: Callable[..., Any], arguments: Callable[[], tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, _ = captured(loss, arguments(), None)
    with monkeypatch.context() as patched:
        patched.setattr(program_parts, "_MANY", 10**9)
        whole, _ = captured(loss, arguments(), None)
    assert set(parts.keys()) == set(whole.keys())
    for key in whole.keys():  # noqa: SIM118 - it is no mapping
        assert parts.entry(key).absent == whole.entry(key).absent
        if whole.entry(whole.entry(key).alias_of or key).absent is None:
            one, other = (np.asarray(dump.array(key), np.float64) for dump in (whole, parts))
            assert np.abs(one - other).max(initial=0) <= 1e-11 * max(np.abs(one).max(initial=0), 1), key
    assert parts.manifest.loss == pytest.approx(whole.manifest.loss, rel=1e-12)
    assert parts.manifest.self_check is not None
    assert parts.manifest.self_check["beyond_rounding"] == []


@pytest.mark.slow
def test_the_parts_are_functions_in_the_compiled_program() -> None:
    trace = trace_loss(deep(30), jnp.eye(3), jnp.ones((2, 3)))
    program, _ = observing_program(trace, make_plan(trace, CaptureSpec()))
    leaves = [jnp.eye(3), jnp.ones((2, 3))]
    whole, parts = (jax.jit(each).lower(leaves).compile() for each in (program, in_parts(program)))
    assert " call(" not in whole.as_text()
    assert parts.as_text().count(" call(") > 10
    equal = jax.tree_util.tree_map(np.array_equal, whole(leaves), parts(leaves))
    assert all(jax.tree_util.tree_leaves(equal))


def test_only_long_losses_are_compiled_in_parts() -> None:
    def is_in_parts(layers: int) -> bool:
        return is_compiled_in_parts(trace_loss(deep(layers), jnp.eye(3), jnp.ones((2, 3))).jaxpr)

    assert [is_in_parts(layers) for layers in (1, 4, 8)] == [False, False, True]


def test_equal_layers_are_one_function_of_the_lowered_program() -> None:
    trace = trace_loss(deep(30), jnp.eye(3), jnp.ones((2, 3)))
    program, _ = observing_program(trace, make_plan(trace, CaptureSpec()))
    text = jax.jit(in_parts(program)).lower([jnp.eye(3), jnp.ones((2, 3))]).as_text()
    assert text.count(" call @") > 3 * text.count("func.func private")


@pytest.mark.slow
def test_parts_of_equal_operations_on_other_operands_are_functions_of_their_own() -> None:
    def program(x: Any, y: Any) -> Any:
        for number in range(24):
            one, other = (x, y) if number % 3 else (y, x)
            low, high = jax.lax.sort((one, other), num_keys=1)
            x, y = (low, high) if number % 2 else (high, low)
            x, y = x - 0.5 * y, jnp.sin(y)
        return x, y

    arguments = jnp.linspace(-1.0, 1.0, 7), jnp.linspace(2.0, -3.0, 7)
    expected, found = (jax.jit(each)(*arguments) for each in (program, in_parts(program)))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12)
