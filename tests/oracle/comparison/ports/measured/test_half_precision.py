"""A port that computes in bfloat16 is judged as one in float32 is, where its faults are larger than its rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import evenly
from tests.support.ports.everything import PORTS
from tests.support.ports.port import Port, Program, captured, named_first
from tests.support.sampled import sampled

BY_NAME = {port.name: port for port in PORTS}

FAULTS = [
    ("a vision transformer", "padding"),
    pytest.param("a text encoder", "scale", marks=pytest.mark.slow),
    pytest.param("a network of depthwise convolutions", "not flipped", marks=pytest.mark.slow),
]


def narrowed(tree: Any) -> Any:
    """Returns a tree with its floating-point leaves in bfloat16."""
    leaves = jax.tree.map(jnp.asarray, tree)
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, leaves
    )


def in_bfloat16(program: Program) -> Program:
    """Returns a program that computes in bfloat16, with parameters and inputs in float32."""
    loss, variables, batch = program
    return lambda *own: loss(*map(narrowed, own)), variables, batch


def with_bfloat16(program: Program) -> Program:
    """Returns a program whose parameters and inputs are in bfloat16."""
    loss, variables, batch = program
    return loss, narrowed(variables), narrowed(batch)


def compared(port: Port, fault: str, made: Callable[[Program], Program] = in_bfloat16) -> gs.Comparison:
    reference = captured(port.reference)
    with jax.numpy_dtype_promotion("standard"):  # ports have constants of float32
        return gs.compare(reference, captured(made(port.candidate(fault))))


@pytest.mark.slow
@sampled(
    ("name", "made"),
    [
        ("a vision transformer", in_bfloat16),
        pytest.param("a text encoder", in_bfloat16, marks=pytest.mark.slow),
        pytest.param("a network of depthwise convolutions", in_bfloat16, marks=pytest.mark.slow),
        ("an LSTM with a kernel for each gate", in_bfloat16),  # whose state is in float32
        ("a decoder with grouped queries", with_bfloat16),  # whose packed parameters are rounded
    ],
)
def test_a_right_port_is_the_same(name: str, made: Callable[[Program], Program]) -> None:
    found = compared(BY_NAME[name], "", made)
    assert found.verdict == "same", found.sentence
    assert "running statistics" not in found.sentence


@pytest.mark.slow
@sampled(("name", "fault"), FAULTS)
def test_a_fault_is_told_at_its_layer(name: str, fault: str) -> None:
    port = BY_NAME[name]
    found = compared(port, fault)
    assert found.verdict == "different"
    assert named_first(found) & {*port.shows_at[fault]}, found.sentence


def test_what_converts_parameters_before_all_else_is_none_of_its_layers() -> None:
    kernels = {"first": evenly(-1.0, 1.2, 6, 6), "second": evenly(-0.9, 1.1, 6, 6), "third": evenly(-1.1, 0.8, 6, 6)}
    parameters = {name: {"kernel": kernel} for name, kernel in kernels.items()}

    def loss(parameters: Any, batch: Any) -> Any:
        hidden = batch["x"]
        for name in kernels:
            hidden = jnp.tanh(hidden @ parameters[name]["kernel"])
        return jnp.square(hidden.astype(jnp.float32)).sum()

    def narrow(parameters: Any, batch: Any) -> Any:
        return loss(narrowed(parameters), narrowed(batch))

    reference, candidate = (gs.capture(each, parameters, {"x": evenly(-1.0, 1.3, 4, 6)}) for each in (loss, narrow))
    found = gs.compare(reference, candidate)
    assert found.verdict == "same", found.sentence
