"""Steps that are called after their lines need no counterpart in a program with scopes."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


@cache
def captured(*, scoped: bool, factor: float = 2.0) -> gs.Dump:
    """Returns the dump of a network whose layers have the names of their parameters, with and without scopes."""
    weights = {"first": {"kernel": drawn(1, 5, 8)}, "last": {"kernel": drawn(2, 8, 3)}}

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first") if scoped else nullcontext():
            x = x @ weights["first"]["kernel"]
        x = jnp.tanh(x) * factor
        with jax.named_scope("last") if scoped else nullcontext():
            x = x @ weights["last"]["kernel"]
        return jnp.square(x).mean()

    return gs.capture(loss, weights, drawn(9, 3, 5))


@pytest.mark.parametrize("scoped", [False, True])
def test_a_program_that_was_given_scopes_or_has_lost_them_is_the_same(scoped: bool) -> None:
    found = gs.compare(captured(scoped=scoped), captured(scoped=not scoped))
    assert found.verdict == "same", found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("scoped", [False, True])
def test_a_fault_in_such_a_program_counts(scoped: bool) -> None:
    found = gs.compare(captured(scoped=scoped), captured(scoped=not scoped, factor=2.5))
    assert "`last`" in found.sentence.partition(". Backward")[0], found.sentence
