"""Where rounding decides on which side of a kink a value is, right programs are the same and faults are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

#: So many values that some are nearer to a kink than the programs are to each other.
EXAMPLES, WIDTH = 64, 4096


def _pooled(values: Any) -> Any:
    return values.reshape(EXAMPLES, WIDTH // 2, 2).max(axis=-1).repeat(2, axis=-1)


ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "leaky": jax.nn.leaky_relu,
    "relu6": lambda values: jax.nn.relu6(4 * values),
    "abs": jnp.abs,
    "pooled": _pooled,
    "clipped": lambda values: jnp.clip(values, -1, 1),
}


def _arguments() -> tuple[Any, Any]:
    def normal(seed: int, *shape: int) -> Any:
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    return {"first": normal(0, 16, WIDTH) / 4, "second": normal(1, WIDTH, 8) / 64}, normal(2, EXAMPLES, 16)


@cache
def _dump(activation: str, *, apart: float = 0.0, scale: float = 1.0, scoped: bool = True) -> Dump:
    """A network whose hidden values are so far from the reference's, or whose gradients have another scale there."""

    @jax.custom_vjp
    def scaled(values: Any) -> Any:
        return values

    scaled.defvjp(lambda values: (values, None), lambda _, gradient: (scale * gradient,))

    def loss(params: Any, batch: Any) -> Any:
        with jax.named_scope("first"):
            hidden = batch @ params["first"]
            hidden += apart * jax.lax.stop_gradient(jnp.sin(1e3 * hidden))
        with jax.named_scope("behind"):
            hidden = hidden + 0.1 * jnp.tanh(hidden)
        hidden = scaled(hidden) if scale != 1 else hidden
        with jax.named_scope("norm"):
            hidden = hidden - hidden.mean(axis=0, keepdims=True)
        if scoped:
            with jax.named_scope("activation"):
                hidden = ACTIVATIONS[activation](hidden)
        else:
            hidden = ACTIVATIONS[activation](hidden)
        with jax.named_scope("second"):
            logits = hidden @ params["second"]
        return jnp.square(logits - 1).mean()

    return gs.capture(loss, *_arguments())


@sampled(("activation", "scoped"), [*((each, True) for each in ACTIVATIONS), ("relu6", False), ("pooled", False)])
def test_right_programs_are_the_same_where_rounding_decides_at_a_kink(activation: str, scoped: bool) -> None:
    found = gs.compare(_dump(activation, scoped=scoped), _dump(activation, apart=3e-5, scoped=scoped))
    assert found, found.sentence
    assert "since rounding decides on which side of a kink values are, first at `norm`" in found.sentence
    kinked = {row.name for row in found.rows if row.kinked}
    assert {"norm", "behind", "first"} <= kinked
    assert all(row.tolerance < 0.05 for row in found.rows if row.tolerance is not None)


@pytest.mark.slow
def test_gradients_that_a_rule_of_the_user_admits_are_the_same_by_that_rule() -> None:
    found = gs.compare(_dump("relu"), _dump("relu", apart=3e-5), tol=[r"(activation|param|input)_grad/.*=rel_l2 < 0.5"])
    assert found, found.sentence
    assert "kink" not in found.sentence
    assert not any(row.kinked for row in found.rows)


@pytest.mark.slow
@sampled("activation", ["relu", "clipped", "pooled"])
def test_a_wrong_gradient_behind_a_kink_is_found_at_its_layer(activation: str) -> None:
    found = gs.compare(_dump(activation), _dump(activation, apart=3e-5, scale=1.1))
    assert not found
    assert "backward first differs at `behind`" in found.sentence


@pytest.mark.slow
def test_more_flips_than_rounding_makes_and_larger_values_are_differences() -> None:
    for apart in (5e-3, 0.05):
        assert not gs.compare(_dump("relu"), _dump("relu", apart=apart), tol=["activation/.*=1"])


@pytest.mark.slow
@pytest.mark.parametrize("selected", ["first", "behind", "norm"])
def test_a_selection_has_the_verdict_of_the_whole(selected: str) -> None:
    found = gs.compare(_dump("relu"), _dump("relu", apart=3e-5), select=selected)
    assert found, found.sentence
    assert any(row.kinked for row in found.rows)
    wrong = gs.compare(_dump("relu"), _dump("relu", apart=3e-5, scale=1.1), select=selected)
    assert bool(wrong) is (selected == "norm")


@cache
def _smooth(function: str, scale: float, dtype: str = "float32") -> Dump:
    """A residual network whose gradient with respect to the output of its third layer is scaled."""
    activation = {"tanh": jnp.tanh, "gelu": jax.nn.gelu, "relu": jax.nn.relu}[function]

    @jax.custom_vjp
    def scaled(values: Any) -> Any:
        return values

    scaled.defvjp(lambda values: (values, None), lambda _, gradient: ((scale * gradient).astype(gradient.dtype),))

    def loss(params: Any, batch: Any) -> Any:
        flow = batch["x"].astype(dtype) @ params[0].astype(dtype)
        for number, kernel in enumerate(params[1:-1]):
            with jax.named_scope(f"dense{number}"):
                hidden = flow @ kernel.astype(dtype)
            with jax.named_scope(f"act{number}"):
                hidden = activation(hidden)
            flow = flow + (scaled(hidden) if number == 2 and scale != 1 else hidden)
        with jax.named_scope("head"):
            logits = (flow @ params[-1].astype(dtype)).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"], 1).mean()

    rng = np.random.default_rng(3)
    sizes = [(16, 64), *[(64, 64)] * 4, (64, 10)]
    kernels = [rng.normal(size=size).astype(np.float32) / size[0] ** 0.5 for size in sizes]
    batch = {"x": rng.normal(size=(64, 16)).astype(np.float32), "y": rng.integers(0, 10, (64, 1))}
    return gs.capture(loss, kernels, batch)


@pytest.mark.slow
@sampled("function", ["tanh", "gelu", "relu"])
def test_signs_that_flip_excuse_no_factor_and_nothing_of_a_smooth_function(function: str) -> None:
    right = gs.compare(_smooth(function, 1.0), _smooth(function, 1.0, "bfloat16"))
    assert right, right.sentence
    found = gs.compare(_smooth(function, 1.0), _smooth(function, 1.2, "bfloat16"))
    assert not found
    assert "backward first differs at `act2`" in found.sentence
    assert function == "relu" or not [row.name for row in found.rows if row.kinked]
