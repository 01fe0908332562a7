"""A port that computes in bfloat16 is judged as one in float32 is, where its faults are larger than its rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.ports.everything import PORTS
from tests.support.ports.port import Port, Program, captured, named_first

BY_NAME = {port.name: port for port in PORTS}

FAULTS = [
    ("a text encoder", "scale"),
    ("a text encoder", "padding"),
    ("a vision transformer", "padding"),
    ("a network of depthwise convolutions", "not flipped"),
]


def in_bfloat16(program: Program) -> Program:
    """Returns a program that computes in bfloat16, with parameters and inputs in float32."""
    loss, variables, batch = program

    def narrow(leaf: Any) -> Any:
        return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return lambda *own: loss(*(jax.tree.map(narrow, jax.tree.map(jnp.asarray, each)) for each in own)), variables, batch


def compared(port: Port, fault: str) -> gs.Comparison:
    reference = captured(port.reference)
    with jax.numpy_dtype_promotion("standard"):  # ports have constants of float32
        return gs.compare(reference, captured(in_bfloat16(port.candidate(fault))))


@pytest.mark.parametrize("name", dict(FAULTS))
def test_a_right_port_is_the_same(name: str) -> None:
    found = compared(BY_NAME[name], "")
    assert found.verdict == "same", found.sentence
    assert "running statistics" not in found.sentence


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_is_told_at_its_layer(name: str, fault: str) -> None:
    port = BY_NAME[name]
    found = compared(port, fault)
    assert found.verdict == "different"
    assert named_first(found) & {*port.shows_at[fault]}, found.sentence
