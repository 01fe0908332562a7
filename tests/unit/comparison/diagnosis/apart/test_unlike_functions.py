"""A function that one program has inside of a layer is told where the other has another one behind the layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison

_draw = np.random.default_rng(43).normal
IMAGES = _draw(size=(4, 6, 6, 3)).astype(np.float32)
KERNELS = {
    "stem": (_draw(size=(3, 3, 3, 4)) / 3).astype(np.float32),
    "c1": (_draw(size=(3, 3, 4, 4)) / 6).astype(np.float32),
    "fc": (_draw(size=(144, 5)) / 12).astype(np.float32),
    "cls": _draw(size=(5, 3)).astype(np.float32),
}
#: The names of the layers in a port.
PORTED = {"stem": "entry", "c1": "mixing", "fc": "hidden", "cls": "final"}
BY_TANH = partial(jax.nn.gelu, approximate=True)
BY_ERF = partial(jax.nn.gelu, approximate=False)


def _conv(kernel: Any, x: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _normalised(x: Any) -> Any:
    mean, variance = x.mean((0, 1, 2), keepdims=True), x.var((0, 1, 2), keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5)


@cache
def _program(function: Callable[[Any], Any], *, ported: bool) -> Dump:
    """A convolution, a function, another one with a norm, and a head; a port has the functions inside of its layers."""

    def named(name: str) -> str:
        return PORTED[name] if ported else name

    def loss(kernels: Any, x: Any) -> Any:
        with jax.named_scope(named("stem")):
            x = _conv(kernels[named("stem")], x)
            x = function(x) if ported else x
        x = x if ported else function(x)
        with jax.named_scope(named("c1")):
            x = _conv(kernels[named("c1")], x)
            x = _normalised(x) if ported else x
        if not ported:
            with jax.named_scope("norm"):
                x = _normalised(x)
        x = jax.nn.relu(x).reshape(4, -1)
        with jax.named_scope(named("fc")):
            x = x @ kernels[named("fc")]
            x = jax.nn.silu(x) if ported else x
        x = x if ported else jax.nn.silu(x)
        with jax.named_scope(named("cls")):
            return jnp.square(x @ kernels[named("cls")]).mean()

    return gs.capture(loss, {named(name): kernel for name, kernel in KERNELS.items()}, IMAGES, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("of_ref", [True, False])
def test_another_function_inside_of_a_layer_is_at_the_layer(of_ref: bool) -> None:
    plain, ported = _program(BY_ERF, ported=False), _program(BY_TANH, ported=True)
    found = gs.compare(plain, ported) if of_ref else gs.compare(ported, plain)
    what = (
        "it goes through gelu by erf, and `entry` is its gelu by tanh"
        if of_ref
        else "it is the gelu by tanh of `stem`, which goes through gelu by erf in the candidate"
    )
    assert found.sentence.startswith(f"Forward first differs at `{'stem' if of_ref else 'entry'}` ("), found.sentence
    assert what in found.sentence, found.sentence


@pytest.mark.parametrize("of_ref", [True, False])
def test_a_function_that_both_apply_behind_is_no_new_error_of_a_layer(of_ref: bool) -> None:
    plain, ported = _program(BY_ERF, ported=False), _program(BY_TANH, ported=True)
    found = gs.compare(plain, ported) if of_ref else gs.compare(ported, plain)
    assert "fc" not in _paired(found), found.sentence
    assert "made anew" not in found.sentence


@pytest.mark.slow
def test_the_same_function_inside_and_behind_is_the_same() -> None:
    assert gs.compare(_program(BY_TANH, ported=False), _program(BY_TANH, ported=True)).verdict == "same"


def _paired(found: Comparison) -> set[str]:
    rows = (row for row in found.rows if row.family == "activation" and row.compared)
    return {name for row in rows for name in (row.name, row.counterpart)}
