"""A form of a GELU within the tolerance is told of the layer behind it, where a program has no entry for it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

WEIGHTS = {
    "fc1": {"kernel": drawn(1, 12, 24) / 18, "bias": drawn(2, 24) / 16},
    "fc2": {"kernel": drawn(3, 24, 12), "bias": drawn(4, 12)},
    "head": {"kernel": drawn(5, 12, 3), "bias": drawn(6, 3)},
}
NAMES = {"fc1": "Dense_0", "fc2": "Dense_1", "head": "head"}


@cache
def _program(*, of_port: bool, form: str = "erf", noise: float = 0.0) -> Dump:
    """A network that has a scope around its GELU as the reference alone, whose kernels are `[outputs, inputs]`."""
    functions = {"erf": lambda x: jax.nn.gelu(x, approximate=False), "tanh": jax.nn.gelu}

    def dense(name: str, weights: Any, x: Any) -> Any:
        with jax.named_scope(NAMES[name] if of_port else name):
            kernel, bias = weights[name]["kernel"], weights[name]["bias"][None]
            return (x @ kernel if of_port else x @ kernel.T) + bias

    def loss(weights: Any, x: Any) -> Any:
        x = dense("fc1", weights, x)
        with nullcontext() if of_port else jax.named_scope("act"):
            x = functions[form](x)
        x = x * (1 + noise)
        x = dense("fc2", weights, x)
        return jnp.square(dense("head", weights, x)).mean()

    weights = {name: {**own, "kernel": own["kernel"] if of_port else own["kernel"].T} for name, own in WEIGHTS.items()}
    return gs.capture(loss, weights, drawn(7, 16, 12), origins=False)


@pytest.mark.parametrize("of_port", [True, False])
def test_the_form_that_a_layer_reads_is_told_where_it_is_the_same_within_the_tolerance(of_port: bool) -> None:
    found = gs.compare(_program(of_port=not of_port), _program(of_port=of_port, form="tanh"))
    assert found.verdict == "same"
    name = "fc1" if of_port else "Dense_0"
    words = f"reads the gelu by erf of `{name}` in the reference, and the gelu by tanh in the candidate"
    assert words in found.sentence, found.sentence


@pytest.mark.slow
def test_nothing_is_told_of_the_same_form_or_of_another_error() -> None:
    reference = _program(of_port=False)
    assert "reads" not in gs.compare(reference, _program(of_port=True)).sentence
    other = gs.compare(reference, _program(of_port=True, noise=3e-5))
    assert other.verdict == "same"
    assert "reads" not in other.sentence
