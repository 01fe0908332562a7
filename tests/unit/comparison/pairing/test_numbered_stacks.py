"""Layers of stacks are paired by their places where two programs count them otherwise, or one has no blocks."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn
from tests.support.sampled import sampled

LAYERS, AT = 4, 2
SIZES = {"g": (8,), "fc1": (8, 12), "b": (12,), "fc2": (12, 8)}
RAW = [
    {name: drawn(10 * at + number, *size) / len(size) for at, (name, size) in enumerate(SIZES.items())}
    for number in range(LAYERS)
]
HEAD, X = drawn(50, 8, 3), drawn(51, 6, 8)


@cache
def _stack(*, of_port: bool = False, first: int = 0, blocks: bool = True, fault: str = "") -> Dump:
    """Returns the dump of residual blocks with a norm and two dense layers, which a port counts from another number."""
    weights: dict[str, Any] = {"out" if of_port else "head": HEAD}
    for number, layer in enumerate(RAW):
        for name, each in layer.items():
            key = f"layers.{number + first}/{name}/kernel" if of_port else f"layers.{number}.{name}"
            weights[key] = np.ascontiguousarray(each.T) if of_port else each

    def of(weights: Any, number: int, name: str) -> Any:
        each = weights[f"layers.{number + first}/{name}/kernel" if of_port else f"layers.{number}.{name}"]
        return each.T if of_port else each

    def loss(weights: Any, x: Any) -> Any:
        order = [0, 1, 2, 2, 3] if fault == "twice" else [0, 1, 2, 3]
        for number in order:
            with jax.named_scope(f"layers.{number + first}") if blocks else nullcontext():
                with jax.named_scope("norm"):
                    y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True)) * of(weights, number, "g")
                with jax.named_scope("fc1"):
                    used = number + 1 if fault == "weights" and number == AT else number
                    y = y @ of(weights, used, "fc1") + of(weights, number, "b")
                y = jax.nn.gelu(y)
                with jax.named_scope("fc2"):
                    y = y @ of(weights, number, "fc2")
                x = y if fault == "residual" and number == AT else x + y
        with jax.named_scope("out" if of_port else "head"):
            return jnp.square(x @ weights["out" if of_port else "head"]).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, X, origins=False)


@pytest.mark.slow
@sampled(("first", "blocks"), [(0, True), (1, True), (0, False)])
def test_a_right_stack_is_the_same_however_its_layers_are_counted(first: int, blocks: bool) -> None:
    found = gs.compare(_stack(), _stack(of_port=True, first=first, blocks=blocks))
    assert found.verdict == "same", found.sentence


@pytest.mark.slow
def test_a_layer_of_a_stack_counted_from_one_is_no_layer_of_its_name() -> None:
    found = gs.compare(_stack(), _stack(of_port=True, first=1, fault="weights"))
    first = found.first_divergence.forward
    assert first is not None
    assert (first.name, first.counterpart) == ("layers.2/fc1", "layers.3/fc1"), found.sentence
    assert "it multiplies by `layers.3.fc1`" in found.sentence


@pytest.mark.slow
def test_the_norm_of_a_block_that_runs_twice_is_no_sum_of_a_block() -> None:
    found = gs.compare(_stack(), _stack(of_port=True, blocks=False, fault="twice"))
    pairs = {(row.name, row.counterpart) for row in found.rows if row.family == "activation"}
    assert not any(name == "layers.2" and (other or "").startswith("norm") for name, other in pairs), pairs
    assert ("layers.3/norm", "norm#5") in pairs


def test_a_term_that_is_left_out_of_a_sum_is_none_of_it() -> None:
    found = gs.compare(_stack(), _stack(of_port=True, fault="residual"))
    assert ", made here; it is the reference's less `layers.1`). " in found.sentence, found.sentence


@cache
def _square_layers(*, scanned: bool, fault: str = "") -> Dump:
    """Returns the dump of square layers, which a program that scans over them has transposed."""
    kernels = [drawn(60 + number, 8, 8) / 3 for number in range(LAYERS)]
    biases = [drawn(70 + number, 8) for number in range(LAYERS)]

    def layer(x: Any, kernel: Any, bias: Any) -> Any:
        with jax.named_scope("fc"):
            return jnp.tanh(x @ kernel + bias)

    def loss(weights: Any, x: Any) -> Any:
        if scanned:
            stacks = weights["layers.fc.weight"], weights["layers.fc.bias"]
            x = jax.lax.scan(lambda x, each: (layer(x, *each), None), x, stacks)[0]
        else:
            for number in range(LAYERS):
                with jax.named_scope(f"layers.{number}"):
                    x = layer(x, weights[f"layers.{number}.fc.weight"].T, weights[f"layers.{number}.fc.bias"])
        return jnp.square(x).mean()

    names = ("layers.fc.weight", "layers.fc.bias")
    turned = [each if fault == "as they are" else each.T for each in kernels]
    turned[AT] = turned[AT - 1] if fault == "another" else turned[AT]
    stacked = dict(zip(names, (np.stack(turned), np.stack(biases)), strict=True))
    apart = {
        f"layers.{number}.fc.{name}": each[number]
        for name, each in (("weight", kernels), ("bias", biases))
        for number in range(LAYERS)
    }
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, stacked if scanned else apart, X, origins=False)


@pytest.mark.slow
def test_square_kernels_are_found_in_a_stack_of_them_transposed() -> None:
    one, other = _square_layers(scanned=False), _square_layers(scanned=True)
    assert gs.compare(one, other).verdict == "same"
    assert gs.compare(other, one).verdict == "same"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["as they are", "another"])
def test_a_stack_of_square_kernels_that_is_not_that_of_the_layers_differs(fault: str) -> None:
    found = gs.compare(_square_layers(scanned=False), _square_layers(scanned=True, fault=fault))
    assert found.verdict == "different"
    where = "layers.2" if fault == "another" else "layers.0"
    assert f"Forward first differs at `{where}/fc`" in found.sentence
